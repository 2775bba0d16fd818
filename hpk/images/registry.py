"""The pull half of https://github.com/opencontainers/distribution-spec, on aiohttp.

Nothing that a registry sends is trusted: every manifest, config and layer is hashed and compared with the digest it
was requested by. Layers are written to disk as they arrive, a megabyte at a time, and a broken download resumes.
:mod:`.authorization` authenticates, :mod:`.responses` reads the responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import json
import re
from typing import IO, TYPE_CHECKING, Any, Final, Self

import aiohttp

import hpk
from hpk import errors
from hpk.aio import backoff
from hpk.images import authorization, image, manifest, reference, responses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
    from pathlib import Path

ATTEMPTS: Final = 5
LONGEST_PAUSE_SECONDS: Final = 60.0
"""A longer Retry-After is not waited for here: the user sees the pod's own back-off, but not this pause."""

_DOCKER_HUB: Final = "registry-1.docker.io"
_CHUNK: Final = 1 << 20


class Registry:
    """All registries over one HTTP session. Plain HTTP is for loopback and `insecure` ones (``host:port``)."""

    def __init__(
        self, *, insecure: Collection[str] = (), sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._insecure = frozenset(insecure)
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None
        self._authorizer = authorization.RegistryAuthorizer(self._request)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; idempotent."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def resolve(self, access: authorization.Access) -> str:
        """Return the digest that the reference names now, without fetching anything else.

        Raises:
            errors.ImageRefused: The registry does not know the name, or denies access.
            errors.RegistryUnavailable: The registry does not respond, or asks to retry later.
        """
        wanted = access.reference
        if wanted.digest:
            return wanted.digest
        url = self._url(wanted, f"manifests/{wanted.tag}")
        with responses.told(f'failed to resolve reference "{wanted}"'):
            async with self._get(url, access=access, method="HEAD", accept=manifest.ACCEPT) as response:
                digest = response.headers.get("Docker-Content-Digest", "")
                if response.status == 200 and reference.is_digest(digest):  # noqa: PLR2004 - OK
                    return digest
            # A HEAD gives no reason, and some registries no digest: request the document itself.
            async with self._get(url, access=access, accept=manifest.ACCEPT) as response:
                await responses.check(response, wanted=wanted)
                body = await responses.whole(response, limit=manifest.LARGEST_DOCUMENT)
                digest = response.headers.get("Docker-Content-Digest", "")
                return digest if reference.is_digest(digest) else f"sha256:{hashlib.sha256(body).hexdigest()}"

    async def fetch_manifest(self, access: authorization.Access, *, digest: str) -> tuple[str, manifest.Manifest]:
        """Return the digest and the manifest for this machine; an index that lists it has another digest.

        Raises:
            errors.ImageRefused: There is no such manifest, none for this platform, or its digest is wrong.
            errors.RegistryUnavailable: As above.
        """
        machine = image.host_architecture()
        with responses.told(f'failed to resolve reference "{access.reference}"'):
            for _ in range(3):  # an index of indexes is allowed, a chain of them is not
                found = await self._document(access, digest=digest)
                if isinstance(found, manifest.Manifest):
                    return digest, found
                digest = manifest.choose(found, architecture=machine).digest
            raise errors.ImageRefused("its index refers to more indexes and to no manifest")

    async def fetch_config(self, access: authorization.Access, *, descriptor: manifest.Descriptor) -> image.ImageConfig:
        """Return the image's config.

        Raises:
            errors.ImageRefused: Its digest is wrong, or it is not a config, or for another platform.
            errors.RegistryUnavailable: As above.
        """
        with responses.told("failed to read the image's config"):
            url = self._url(access.reference, f"blobs/{descriptor.digest}")
            async with self._get(url, access=access) as response:
                await responses.check(response, wanted=access.reference)
                body = await responses.whole(response, limit=manifest.LARGEST_DOCUMENT)
            responses.compare(descriptor.digest, body)
            try:
                document = json.loads(body)
                config = image.config_from_json(document)
                system = document.get("os", "")
            except (ValueError, AttributeError, RecursionError) as error:
                raise errors.ImageRefused(f"the config cannot be read: {error}") from error
            machine = image.host_architecture()
            if (system or "linux", config.architecture or machine) != ("linux", machine):
                raise errors.ImageRefused(
                    f"no match for platform linux/{machine} in manifest "
                    f"(it has {system}/{config.architecture}): not found"
                )
            return config

    async def download(self, access: authorization.Access, *, descriptor: manifest.Descriptor, path: Path) -> None:
        """Fetch a layer into the file at path; resume a broken transfer.

        Raises:
            errors.ImageRefused: Its digest is wrong.
            errors.RegistryUnavailable: As above.
            OSError: The file cannot be written.
        """
        url = self._url(access.reference, f"blobs/{descriptor.digest}")
        pauses = backoff.Backoff(backoff.BackoffPolicy(first_seconds=0.5, cap_seconds=LONGEST_PAUSE_SECONDS))
        with responses.told(f"failed to copy layer {descriptor.digest}"), path.open("wb") as file:
            sink = _Sink(file, algorithm=descriptor.digest.partition(":")[0])
            while True:
                before = sink.size
                try:
                    await self._download(url, access=access, descriptor=descriptor, sink=sink)
                    break
                except (aiohttp.ClientError, TimeoutError) as error:
                    if sink.size > before:
                        pauses.succeeded()  # do not give up on a slow line while data arrives
                    pause = pauses.failed()
                    if pauses.failures >= ATTEMPTS:
                        raise errors.RegistryUnavailable(
                            f'failed to do request: GET "{url}": {responses.why(error)}'
                        ) from error
                    await self._sleep(pause)
            if sink.digest() != descriptor.digest:
                raise responses.lied(descriptor.digest, sink.digest())

    async def _download(
        self, url: str, *, access: authorization.Access, descriptor: manifest.Descriptor, sink: _Sink
    ) -> None:
        headers = {"Range": f"bytes={sink.size}-"} if sink.size else {}
        async with self._get(url, access=access, headers=headers) as response:
            sent = response.headers.get("Content-Range", "")
            if response.status != 206 or not sent.startswith(f"bytes {sink.size}-"):  # noqa: PLR2004 - Partial Content
                await responses.check(response, wanted=access.reference)
                await asyncio.to_thread(sink.restart)
            held = bytearray()
            async for part in response.content.iter_any():
                held += part
                if sink.size + len(held) > descriptor.size:
                    raise errors.ImageRefused(f"the registry sent more than the {descriptor.size} bytes it announced")
                if len(held) >= _CHUNK:
                    await asyncio.to_thread(sink.write, held)
                    held = bytearray()
            await asyncio.to_thread(sink.write, held)
        if sink.size < descriptor.size:
            raise aiohttp.ClientPayloadError(f"{sink.size} of {descriptor.size} bytes arrived")

    async def _document(self, access: authorization.Access, *, digest: str) -> manifest.Manifest | manifest.Index:
        url = self._url(access.reference, f"manifests/{digest}")
        async with self._get(url, access=access, accept=manifest.ACCEPT) as response:
            await responses.check(response, wanted=access.reference)
            body = await responses.whole(response, limit=manifest.LARGEST_DOCUMENT)
            kind = response.content_type
        responses.compare(digest, body)
        return manifest.read(body, media_type=kind)

    def _url(self, wanted: reference.Reference, path: str) -> str:
        host = _DOCKER_HUB if wanted.registry == "docker.io" else wanted.registry
        scheme = "http" if wanted.registry in self._insecure or _is_loopback(host) else "https"
        return f"{scheme}://{host}/v2/{wanted.repository}/{path}"

    @contextlib.asynccontextmanager
    async def _get(
        self,
        url: str,
        *,
        access: authorization.Access,
        method: str = "GET",
        accept: str = "*/*",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a response that is neither a challenge nor a request to retry later.

        Raises:
            errors.RegistryUnavailable: The last attempt failed.
            aiohttp.ClientError: Only while the caller reads the body.
        """
        response = await self._patiently(
            method, url, access=access, headers={"Accept": accept, "Accept-Encoding": "identity", **(headers or {})}
        )
        try:
            yield response
        finally:
            response.close() if method == "GET" and not response.content.is_eof() else response.release()

    async def _patiently(
        self, method: str, url: str, *, access: authorization.Access, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        pauses = backoff.Backoff(backoff.BackoffPolicy(first_seconds=0.5, cap_seconds=LONGEST_PAUSE_SECONDS))
        while True:
            asked_for = None
            try:
                response = await self._authorizer.request(method, url, access=access, headers=headers)
                if response.status not in responses.BUSY:
                    return response
                problem = f'unexpected status from {method} request to "{url}": {await responses.explanation(response)}'
                asked_for = responses.retry_after(response.headers.get("Retry-After", ""))
                cause: Exception | None = None
                response.release()
            except (aiohttp.ClientError, TimeoutError) as error:
                problem, cause = f'failed to do request: {method} "{url}": {responses.why(error)}', error
                if isinstance(error, aiohttp.ClientConnectorSSLError):
                    problem += " (if it speaks plain HTTP, name it in HPK_INSECURE_REGISTRIES)"
                if isinstance(error, (aiohttp.ClientSSLError, aiohttp.InvalidURL)):
                    raise errors.RegistryUnavailable(problem) from error
            pause = pauses.failed() if asked_for is None else asked_for
            if pauses.failures >= ATTEMPTS or pause > LONGEST_PAUSE_SECONDS:
                raise errors.RegistryUnavailable(problem) from cause
            if asked_for is not None:
                pauses.failed()
            await self._sleep(pause)

    async def _request(self, method: str, url: str, **options: Any) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=True,  # the site's proxies
                headers={"User-Agent": f"hpk/{hpk.__version__}"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=15, sock_read=60),
                auto_decompress=False,  # digests are of the bytes as sent
            )
        return await self._session.request(method, url, **options)


class _Sink:
    """A file that is hashed as it is written; its methods block: call them in threads."""

    def __init__(self, file: IO[bytes], *, algorithm: str) -> None:
        self._file = file
        self._algorithm = algorithm
        self._hash = hashlib.new(algorithm)
        self.size = 0

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.new(self._algorithm)
        self.size = 0

    def write(self, data: bytearray) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def digest(self) -> str:
        return f"{self._algorithm}:{self._hash.hexdigest()}"


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":[0-9]+$", host) else host
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return name == "localhost"
