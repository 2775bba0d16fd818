"""A client of the API server: raw JSON objects in and out, errors mapped once.

Built on kubernetes.aio for kubeconfigs, TLS and connections. Objects stay dicts as the API server sent them: a
kubelet must keep fields that it does not know, and typed models would drop them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from kubernetes.aio import config as kube_config
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject

import hpk
from hpk import errors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

Object = dict[str, Any]
PatchKind = Literal["strategic", "merge", "json"]

PATCH_TYPES: Mapping[str, str] = {
    "strategic": "application/strategic-merge-patch+json",
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
}
USER_AGENT = f"hpk/{hpk.__version__}"
"""Identifies us in objects' managedFields and in the audit log."""
TIMEOUT_SECONDS = 30.0
WATCH_SILENCE_SECONDS = 90.0
"""Bookmarks arrive about every minute; a watch that is silent for longer counts as dead."""
CONNECTIONS = 16
"""Most connections, watches included: each takes half a megabyte, mostly TLS buffers, until it has idled for 15 s."""
LONG_LINE_BYTES = 4 << 20


class Kube:
    """A client with one identity; an async context manager that closes its connections."""

    def __init__(self, configuration: Configuration) -> None:
        configuration.connection_pool_maxsize = CONNECTIONS
        # A site's http_proxy is for external hosts, never for our own API server.
        configuration.client_session_kwargs = {"trust_env": False, "read_bufsize": LONG_LINE_BYTES}
        self._rest = RESTClientObject(configuration)
        self.url = str(configuration.host).rstrip("/")

    @classmethod
    async def from_kubeconfig(cls, path: Path | str, *, server: str = "") -> Self:
        """Connect as the current user of a kubeconfig file; `server` replaces the file's URL.

        Raises:
            errors.Fatal: The file is missing or is not a kubeconfig.
        """
        configuration = Configuration()
        try:
            await kube_config.load_kube_config(str(path), client_configuration=configuration, persist_config=False)
        except (kube_config.ConfigException, OSError) as error:
            raise errors.Fatal(f"Cannot use the kubeconfig {path}: {error}") from error
        except (ValueError, TypeError, AttributeError, KeyError) as error:  # the library's errors for invalid content
            raise errors.Fatal(f"Cannot use the kubeconfig {path}: it is not a kubeconfig: {error!r}") from error
        configuration.host = server or configuration.host
        return cls(configuration)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; the client cannot be used afterwards."""
        await self._rest.close()

    async def get(self, path: str, *, query: Mapping[str, Any] | None = None) -> Object:
        """Return the object or list at this path, such as ``/api/v1/namespaces/a/pods/b``."""
        return await self._request("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        """POST body; errors.Conflict if it exists."""
        return await self._request("POST", path, body=body)

    async def replace(self, path: str, body: Object) -> Object:
        """PUT body; errors.Conflict if it changed since it was read."""
        return await self._request("PUT", path, body=body)

    async def patch(self, path: str, body: Any, *, kind: PatchKind = "strategic") -> Object:
        """PATCH with body of this kind."""
        return await self._request("PATCH", path, body=body, content_type=PATCH_TYPES[kind])

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        """Apply body server-side as this field manager; create the object if it is missing."""
        query = {"fieldManager": manager, "force": "true"}
        return await self._request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")

    async def delete(self, path: str, *, body: Object | None = None) -> Object:
        """DELETE; body may be DeleteOptions."""
        return await self._request("DELETE", path, body=body)

    async def watch(self, path: str, *, query: Mapping[str, Any], resource_version: str) -> AsyncIterator[Object]:
        """Yield watch events (``{"type", "object"}``) until the server ends the watch.

        Raises:
            errors.Conflict: The resourceVersion is too old (410): list again.
            errors.ApiUnavailable: The connection broke or fell silent.
        """
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "resourceVersion": resource_version}
        timeout = _timeout(silence_seconds=WATCH_SILENCE_SECONDS)
        response = await self._send("GET", path, query=asked, timeout=timeout)
        try:
            if response.status >= 300:  # noqa: PLR2004 - the HTTP class
                raise _error(response.status, await response.read(), method="GET", path=path)
            while line := await response.content.readline():
                event: Object = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise _error(int(status.get("code", 500)), line, method="WATCH", path=path)
                yield event
        except (aiohttp.ClientError, TimeoutError, ConnectionError, ValueError) as error:
            raise errors.ApiUnavailable(f"Cannot continue to watch {path}: {error!r}") from error
        finally:
            response.close()

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Object:
        timeout = _timeout(silence_seconds=TIMEOUT_SECONDS)
        response = await self._send(method, path, query=query, body=body, content_type=content_type, timeout=timeout)
        try:
            data = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise errors.ApiUnavailable(f"Cannot {method} {path}: {error!r}") from error
        if response.status >= 300:  # noqa: PLR2004 - the HTTP class
            raise _error(response.status, data, method=method, path=path)
        try:
            decoded: Object = msgspec.json.decode(data)
        except msgspec.DecodeError as error:
            raise errors.ApiUnavailable(f"Cannot {method} {path}: the response is not JSON") from error
        return decoded

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own, passed on
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> aiohttp.ClientResponse:
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": USER_AGENT}
        try:
            answer = await self._rest.request(method, url, headers=headers, body=body, _request_timeout=timeout)
        except (aiohttp.ClientError, TimeoutError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise errors.ApiUnavailable(f"Cannot {method} {path}: {error!r}") from error
        response: aiohttp.ClientResponse = answer.response
        return response


def _timeout(*, silence_seconds: float) -> aiohttp.ClientTimeout:
    """Return timeouts for the server alone; waiting for one of our own connections has no limit."""
    return aiohttp.ClientTimeout(total=None, connect=None, sock_connect=TIMEOUT_SECONDS, sock_read=silence_seconds)


def pod_path(namespace: str, name: str = "", subresource: str = "") -> str:
    """Return the API path of a namespace's pods, of one pod, or of its subresource."""
    parts = ["/api/v1/namespaces", quote(namespace), "pods", quote(name), subresource]
    return "/".join(part for part in parts if part)


def core_path(kind: str, namespace: str, name: str = "") -> str:
    """Return the API path of a namespaced core object, such as ``configmaps`` or ``events``."""
    return f"/api/v1/namespaces/{quote(namespace)}/{kind}" + (f"/{quote(name)}" if name else "")


def _error(code: int, data: bytes, *, method: str, path: str) -> errors.HpkError:
    try:
        message = str(msgspec.json.decode(data).get("message") or "")
    except (msgspec.DecodeError, AttributeError):
        message = data[:200].decode(errors="replace")
    text = message or f"Cannot {method} {path}: HTTP {code}"
    match code:
        case 404:
            return errors.NotFound(text)
        case 409 | 410:
            return errors.Conflict(text)
        case 408 | 429 | 500 | 502 | 503 | 504:
            return errors.ApiUnavailable(text)
        case _:
            return errors.Rejected(text)
