"""Registries' responses, read with a bound on their size; faults become :mod:`hpk.errors` with containerd's texts."""

from __future__ import annotations

import contextlib
import datetime as dt
import email.utils
import hashlib
import json
from typing import TYPE_CHECKING, Final

import aiohttp

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpk.images import reference

BUSY: Final = (408, 425, 429, 500, 502, 503, 504)
"""Status codes that ask to retry later."""
LONGEST: Final = 64 << 10
"""Most bytes of a response that is no part of an image."""


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Prefix an error's text with what was tried; keep its class and its reason."""
    try:
        yield
    except errors.ImageRefused as error:
        raise errors.ImageRefused(f"{what}: {error}", reason=error.reason) from error
    except errors.Retryable as error:
        raise type(error)(f"{what}: {error}") from error


async def check(response: aiohttp.ClientResponse, *, wanted: reference.Reference) -> None:
    """Raise the error for a status other than 200, with the registry's own message."""
    if response.status == 200:  # noqa: PLR2004 - OK
        return
    answer = await explanation(response)
    if response.status == 404:  # noqa: PLR2004 - Not Found
        raise errors.ImageRefused(f"{wanted}: not found")
    if response.status == 401:  # noqa: PLR2004 - Unauthorized
        raise errors.ImageRefused(
            f"pull access denied, repository does not exist or may require authorization: server message: {answer}"
        )
    raise errors.ImageRefused(f"unexpected status from {response.method} request to {response.url}: {answer}")


async def explanation(response: aiohttp.ClientResponse) -> str:
    """Return the status and the registry's explanation, if there is one, in one line."""
    status = f"{response.status} {response.reason or ''}".strip()
    try:
        body = await response.content.read(LONGEST)
        listed = [
            ": ".join(str(part) for part in (entry.get("code", "").lower(), entry.get("message", "")) if part)
            for entry in json.loads(body)["errors"]
        ]
        said = ", ".join(listed)
    except (aiohttp.ClientError, TimeoutError, ValueError, LookupError, TypeError, AttributeError):
        return status
    return f"{status}: {said}" if said else status


async def whole(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """Return the body.

    Raises:
        errors.ImageRefused: It is longer than limit bytes.
        errors.RegistryUnavailable: The connection broke.
    """
    body = bytearray()
    try:
        async for part in response.content.iter_any():
            body += part
            if len(body) > limit:
                raise errors.ImageRefused(f"{response.url} is longer than {limit} bytes")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise errors.RegistryUnavailable(f'failed to do request: GET "{response.url}": {why(error)}') from error
    return bytes(body)


def compare(digest: str, body: bytes) -> None:
    """Raise :func:`lied` if the body does not have the digest."""
    algorithm = digest.partition(":")[0]
    actual = f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"
    if actual != digest:
        raise lied(digest, actual)


def lied(digest: str, actual: str) -> errors.ImageRefused:
    """Return the error for content with a digest other than the one requested."""
    return errors.ImageRefused(f"the registry sent content with the wrong digest: {actual} instead of {digest}")


def retry_after(text: str) -> float | None:
    """Return the seconds of a Retry-After header, which is a number or a date; None if there is none."""
    if text.isdecimal():
        return float(text)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    if until.tzinfo is None:
        until = until.replace(tzinfo=dt.UTC)
    return max(0.0, (until - dt.datetime.now(dt.UTC)).total_seconds())


def why(error: BaseException) -> str:
    """Describe a network error; some have no text."""
    return "timeout" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
