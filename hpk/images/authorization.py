"""Authentication to a registry, with a token from its realm or with the password itself.

Source: https://distribution.github.io/distribution/spec/auth/, on HTTP's own challenges (RFC 9110, section 11).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpk import errors
from hpk.images import credentials, responses

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import aiohttp

    from hpk.images import reference

_CHALLENGE: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, kw_only=True)
class Access:
    """A repository and who accesses it (None: anonymous). It is a key of caches, so that users never share an entry."""

    reference: reference.Reference
    login: credentials.Credentials | None = None

    @property
    def repository(self) -> tuple[str, credentials.Credentials | None]:
        """The scope of a token."""
        return self.reference.name, self.login


class RegistryAuthorizer:
    """Makes authenticated requests; remembers each user's answer to a repository's challenge."""

    def __init__(self, send: Callable[..., Awaitable[aiohttp.ClientResponse]]) -> None:
        """Keep the function that makes a request, with the parameters of :meth:`aiohttp.ClientSession.request`."""
        self._send = send
        self._known: dict[tuple[str, credentials.Credentials | None], str] = {}

    async def request(
        self, method: str, url: str, *, access: Access, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Return the response, after answering the registry's challenge if there was one; 401 if that failed."""
        known = self._known.get(access.repository)
        response = await self._send(method, url, headers={**headers, **_authorization(known)})
        if response.status != 401:  # noqa: PLR2004 - Unauthorized
            return response
        challenge = response.headers.get("WWW-Authenticate", "")
        fresh = await self._meet(challenge, url=url, access=access)
        if not fresh:
            return response
        response.release()
        self._known[access.repository] = fresh
        return await self._send(method, url, headers={**headers, **_authorization(fresh)})

    async def _meet(self, challenge: str, *, url: str, access: Access) -> str:
        """Return the Authorization header that answers the challenge; empty if there is none."""
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(_CHALLENGE.findall(rest))
        known = access.login
        if scheme.lower() == "basic":
            return known.basic if known else ""
        realm = parameters.get("realm", "")
        if scheme.lower() != "bearer" or not realm.startswith(("http://", "https://")):
            return ""
        if known and url.startswith("https://") and not realm.startswith("https://"):
            raise errors.ImageRefused(f"failed to authorize: {realm} would receive the password over plain HTTP")
        scope = parameters.get("scope") or f"repository:{access.reference.repository}:pull"
        fields = {"scope": scope} | ({"service": parameters["service"]} if "service" in parameters else {})
        if known and known.identity_token:
            form = {**fields, "grant_type": "refresh_token", "client_id": "hpk", "refresh_token": known.identity_token}
            response = await self._send("POST", realm, data=form)
        else:
            response = await self._send(
                "GET", realm, params=fields, headers=_authorization(known.basic if known else None)
            )
        async with response:
            return await _token(response, realm=realm, is_anonymous=known is None)


def _authorization(value: str | None) -> dict[str, str]:
    return {"Authorization": value} if value else {}


async def _token(response: aiohttp.ClientResponse, *, realm: str, is_anonymous: bool) -> str:
    if response.status in responses.BUSY:
        raise errors.RegistryUnavailable(
            f'unexpected status from request to "{realm}": {await responses.explanation(response)}'
        )
    if response.status != 200:  # noqa: PLR2004 - OK
        kind = "anonymous" if is_anonymous else "oauth"
        raise errors.ImageRefused(
            f"failed to authorize: failed to fetch {kind} token: "
            f"unexpected status from request to {realm}: {await responses.explanation(response)}"
        )
    try:
        document = json.loads(await responses.whole(response, limit=responses.LONGEST))
        token = document.get("token") or document.get("access_token")
    except (ValueError, AttributeError) as error:
        raise errors.ImageRefused(f"failed to authorize: {realm} sent no JSON") from error
    if not isinstance(token, str) or not token.isprintable():
        raise errors.ImageRefused(f"failed to authorize: {realm} sent no token")
    return f"Bearer {token}"
