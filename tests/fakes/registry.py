"""A registry in this process: serves what was pushed, and misbehaves as it is told."""

from __future__ import annotations

import base64
import collections
import gzip
import hashlib
import io
import json
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from aiohttp import test_utils, web

from hpk.images import authorization, image, manifest, reference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpk.images import credentials

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest_of(data: bytes) -> str:
    """As registries write it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def descriptor(blob: bytes, *, digest: str = "") -> manifest.Descriptor:
    """Of a blob that the registry has, or says it has."""
    return manifest.Descriptor(digest=digest or digest_of(blob), size=len(blob))


@dataclass(frozen=True, kw_only=True)
class Member:
    """A member of a layer; a name that ends in a slash is a directory."""

    name: str
    text: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    kind: bytes = tarfile.REGTYPE
    link: str = ""
    pax: dict[str, str] = field(default_factory=dict)


def directory(name: str, *, mode: int = 0o755, uid: int = 0, gid: int = 0) -> Member:
    """A directory."""
    return Member(name=name, kind=tarfile.DIRTYPE, mode=mode, uid=uid, gid=gid)


def symlink(name: str, target: str) -> Member:
    """A symbolic link."""
    return Member(name=name, kind=tarfile.SYMTYPE, link=target, mode=0o777)


def hard_link(name: str, target: str) -> Member:
    """A hard link."""
    return Member(name=name, kind=tarfile.LNKTYPE, link=target)


def tar(*members: Member) -> bytes:
    """A layer, not compressed."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as archive:
        for member in members:
            info = tarfile.TarInfo(member.name)
            info.mode, info.uid, info.gid, info.mtime = member.mode, member.uid, member.gid, member.mtime
            info.type, info.linkname, info.size = member.kind, member.link, len(member.text)
            info.pax_headers = member.pax
            archive.addfile(info, io.BytesIO(member.text))
    return out.getvalue()


def layer(*members: Member) -> bytes:
    """A layer as most are: gzip."""
    return gzip.compress(tar(*members), mtime=0)


class FakeRegistry:
    """An async context manager; ``host`` is ``127.0.0.1:port``, which is spoken to in plain HTTP.

    Attributes:
        requests: All requests so far, as ``GET /v2/…``.
        users: If not empty, a token is demanded, and these may have one; "" stands for everybody.
        answers: By a part of the path: handlers that answer instead, one request each; None answers as usual.
    """

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.authorizations: list[str] = []
        self.users: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.answers: dict[str, collections.deque[Callable[[web.Request], Awaitable[web.StreamResponse]] | None]] = {}
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._server = test_utils.TestServer(app)

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

    @property
    def host(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._server.port}"

    def access(self, name: str = "a/b:1", *, login: credentials.Credentials | None = None) -> authorization.Access:
        """The image of this name in here, and who asks for it."""
        wanted = reference.parse(f"{self.host}/{name}")
        assert isinstance(wanted, reference.Reference)
        return authorization.Access(reference=wanted, login=login)

    def answer(self, part: str, *handlers: Callable[[web.Request], Awaitable[web.StreamResponse]] | None) -> None:
        """Let the next requests whose path contains part be answered by these."""
        self.answers.setdefault(part, collections.deque()).extend(handlers)

    def count(self, part: str) -> int:
        """How many requests so far contain part."""
        return sum(part in request for request in self.requests)

    def push(
        self,
        repository: str,
        *,
        tag: str,
        layers: tuple[bytes, ...] = (),
        config: dict[str, Any] | None = None,
        architecture: str = "",
    ) -> str:
        """Store an image and return its manifest's digest."""
        body = json.dumps(
            {"os": "linux", "architecture": architecture or image.host_architecture(), "config": config or {}}
        ).encode()
        for blob in (*layers, body):
            self.blobs[digest_of(blob)] = blob
        return self.put(
            repository,
            tag=tag,
            media_type=MANIFEST,
            document={
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": {"digest": digest_of(body), "size": len(body)},
                "layers": [{"digest": digest_of(blob), "size": len(blob)} for blob in layers],
            },
        )

    def push_index(self, repository: str, *, tag: str, images: dict[str, str]) -> str:
        """Store an index over images, digests by ``os/architecture``, and return its digest."""
        entries = []
        for platform, digest in images.items():
            system, _, architecture = platform.partition("/")
            size = len(self.manifests[repository, digest][1])
            entries.append({"digest": digest, "size": size, "platform": {"os": system, "architecture": architecture}})
        return self.put(repository, tag=tag, media_type=INDEX, document={"schemaVersion": 2, "manifests": entries})

    def put(self, repository: str, *, tag: str, media_type: str, document: dict[str, Any]) -> str:
        """Store any document as a manifest."""
        body = json.dumps(document).encode()
        self.manifests[repository, tag] = self.manifests[repository, digest_of(body)] = (media_type, body)
        return digest_of(body)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        self.authorizations.append(request.headers.get("Authorization", ""))
        for part, waiting in self.answers.items():
            if part in request.path and waiting:
                handler = waiting.popleft()
                if handler is not None:
                    return await handler(request)
        if request.path == "/token":
            return self._give_token(request)
        if self.users and request.headers.get("Authorization") != "Bearer secret":
            challenge = f'Bearer realm="http://{self.host}/token",service="fake",scope="repository:x:pull"'
            return _error(401, "UNAUTHORIZED", "authentication required", {"WWW-Authenticate": challenge})
        repository, kind, name = request.path.removeprefix("/v2/").rsplit("/", 2)
        if kind == "manifests" and (repository, name) in self.manifests:
            media_type, body = self.manifests[repository, name]
            headers = {"Docker-Content-Digest": digest_of(body)}
            return web.Response(body=body, content_type=media_type, headers=headers)
        if kind == "blobs" and name in self.blobs:
            return _blob(request, self.blobs[name])
        return _error(404, "MANIFEST_UNKNOWN", "manifest unknown")

    def _give_token(self, request: web.Request) -> web.Response:
        header = request.headers.get("Authorization", "Basic Og==")
        name, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        if self.users.get(name) != password:
            return _error(401, "UNAUTHORIZED", "incorrect username or password")
        return web.json_response({"token": "secret"})


def status(code: int, *, retry_after: str = "") -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that answers with a bare status."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(status=code, headers={"Retry-After": retry_after} if retry_after else {})

    return handler


def error(code: int, *, message: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that answers with a registry's error."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return _error(code, "DENIED", message)

    return handler


def body(
    data: bytes, *, headers: dict[str, str] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that answers with these bytes, whatever was asked for."""

    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response(body=data, headers=headers)

    return handler


def broken(data: bytes, *, after: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """A handler that announces data and hangs up in the middle."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:after])
        assert request.transport is not None
        request.transport.close()
        return response

    return handler


def _blob(request: web.Request, data: bytes) -> web.Response:
    wanted = request.headers.get("Range", "")
    if not wanted:
        return web.Response(body=data)
    start = int(wanted.removeprefix("bytes=").removesuffix("-"))
    headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
    return web.Response(status=206, body=data[start:], headers=headers)


def _error(code: int, word: str, message: str, headers: dict[str, str] | None = None) -> web.Response:
    document = {"errors": [{"code": word, "message": message}]}
    return web.json_response(document, status=code, headers=headers)
