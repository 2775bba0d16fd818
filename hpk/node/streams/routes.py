"""The routes of the kubelet's API that reach into pods: exec, attach, portForward and run.

Everything that can fail is checked before the protocol switches, and answered as HTTP: the API server relays a status
of 400 or more unchanged. Authorization comes earlier (:mod:`hpk.node.server`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from hpk import errors
from hpk.link import sessions
from hpk.node import logs
from hpk.node.streams import forward, handshake, remote, wire

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from hpk.node import podsource

LOG = structlog.get_logger(__name__)

MOST_RUN_BYTES = 16 << 20
"""The limit of the output of ``run``; the rest is dropped, as container runtimes do."""

Object = dict[str, Any]


class Streams:
    """The handlers, and the connections that they have taken over."""

    def __init__(self, pods: podsource.PodSource, opener: sessions.SessionOpener) -> None:
        self._pods, self._opener = pods, opener
        self._tasks: set[asyncio.Task[Any]] = set()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        pod, uid, container = "/{namespace}/{pod}", "/{uid}", "/{container}"
        for name, handler, rest in (
            ("exec", self._exec, container),
            ("attach", self._attach, container),
            ("portForward", self._forward, ""),
        ):
            for path in (f"/{name}{pod}{rest}", f"/{name}{pod}{uid}{rest}"):
                router.add_get(path, handler, allow_head=False)
                router.add_post(path, handler)
        for path in (f"/run{pod}{container}", f"/run{pod}{uid}{container}"):
            router.add_post(path, self._run)

    async def close(self) -> None:
        """Tell all clients that the kubelet is stopping."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        return await self._remote(request, is_exec=True)

    async def _attach(self, request: web.Request) -> web.StreamResponse:
        return await self._remote(request, is_exec=False)

    async def _remote(self, request: web.Request, *, is_exec: bool) -> web.StreamResponse:
        """Handle exec and attach."""
        try:
            wanted = handshake.options(request.query)
            argv = handshake.command(request.query.getall("command", [])) if is_exec else ()
            pod = self._pod(request.match_info)
            container = _running_container(pod, request.match_info["container"])
            agreed = _agree(request, spdy=handshake.SPDY_REMOTE, websocket=handshake.WEBSOCKET_REMOTE)
        except handshake.HandshakeRefused as error:
            return _refusal(error)
        flags: dict[str, Any] = {"stdin": wanted.stdin, "stdout": wanted.stdout, "stderr": wanted.stderr}
        what: sessions.Exec | sessions.Attach = (
            sessions.Exec(container=container, argv=argv, tty=wanted.tty, **flags)
            if is_exec
            else sessions.Attach(container=container, tty=_has_terminal(pod, container), **flags)
        )
        client = (remote.WebSocketClient if agreed.is_websocket else remote.SpdyClient)(agreed, wanted)
        uid = pod["metadata"]["uid"]
        return await self._take(request, agreed, client.wire, remote.serve(client, self._opener, uid, what))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        try:
            pod = self._pod(request.match_info)
            agreed = _agree(request, spdy=handshake.SPDY_FORWARD, websocket=handshake.WEBSOCKET_FORWARD)
            is_numbered = agreed.is_websocket and agreed.protocol != handshake.TUNNEL
            ports = handshake.ports(request.query) if is_numbered else ()
        except handshake.HandshakeRefused as error:
            return _refusal(error)
        forwarder = forward.Forwarder(self._opener, pod=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        client: forward.SpdyForward | forward.WebSocketForward
        if is_numbered:
            client = forward.WebSocketForward(forwarder, agreed, ports)
        else:
            client = (forward.TunnelForward if agreed.is_websocket else forward.SpdyForward)(forwarder)
        return await self._take(request, agreed, client.wire, client.run())

    async def _run(self, request: web.Request) -> web.StreamResponse:
        try:
            argv = handshake.command(request.query.get("cmd", "").split(" "))
            pod = self._pod(request.match_info)
            container = _running_container(pod, request.match_info["container"])
        except handshake.HandshakeRefused as error:
            return _refusal(error)
        try:
            ended, output = await self._output(pod["metadata"]["uid"], sessions.Exec(container=container, argv=argv))
        except errors.HpkError as error:
            return web.Response(status=500, text=str(error))
        if ended.exit_code != 0:
            why = ended.error or f"exit code {ended.exit_code}"
            text = f"command {' '.join(argv)!r} failed: {why}: {output.decode(errors='replace')}"
            return web.Response(status=500, text=text)
        return web.Response(body=output, content_type="text/plain")

    async def _output(self, uid: str, what: sessions.Exec) -> tuple[sessions.Ended, bytes]:
        session = await self._opener.open(uid, what)
        output = bytearray()
        try:
            while True:
                match await session.receive():
                    case sessions.Data(_, data):
                        output += data[: MOST_RUN_BYTES - len(output)]
                    case sessions.Ended() as ended:
                        return ended, bytes(output)
        finally:
            await session.abort()

    def _pod(self, where: Mapping[str, str]) -> Object:
        """Return the pod that the path names, or raise handshake.HandshakeRefused."""
        pod = self._pods.find(where["namespace"], where["pod"])
        if pod is None or where.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise handshake.HandshakeRefused("pod does not exist", code=404)
        return pod

    async def _take(
        self, request: web.Request, agreed: handshake.Handshake, taken: wire.Wire, serving: Coroutine[Any, Any, None]
    ) -> web.StreamResponse:
        """Take over the connection, and return when it is closed and its tasks have ended."""
        me = asyncio.current_task()
        assert me is not None
        served = asyncio.create_task(serving, name=f"{request.method} {request.path}")
        self._tasks.add(me)
        try:
            if taken.take(request, agreed.head):
                await asyncio.wait({served, taken.lost}, return_when=asyncio.FIRST_COMPLETED)
                if served.done() and not taken.lost.done():
                    await taken.wait_for_the_client(seconds=wire.FINISH_SECONDS)
        finally:
            self._tasks.discard(me)
            served.cancel()
            (result,) = await asyncio.gather(served, return_exceptions=True)
            if isinstance(result, Exception):
                LOG.error("Cannot serve a stream", path=request.path, exc_info=result)
            taken.hang_up()
            # aiohttp no longer sees the connection's end. Without this call it would keep the connection forever.
            request.protocol.connection_lost(None)
        return _Taken()


class _Taken(web.Response):
    """A placeholder response for a connection that aiohttp no longer owns."""

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send nothing."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing."""


def _agree(request: web.Request, *, spdy: tuple[str, ...], websocket: tuple[str, ...]) -> handshake.Handshake:
    if request.can_read_body:
        raise handshake.HandshakeRefused("unable to upgrade: the request has a body")
    return handshake.agree(request.headers, method=request.method, spdy_protocols=spdy, websocket_protocols=websocket)


def _running_container(pod: Object, name: str) -> str:
    """Return the name if the container is running, else raise handshake.HandshakeRefused."""
    if logs.container_spec(pod, name) is None:
        raise handshake.HandshakeRefused(f'container not found ("{name}")', code=404)
    state = (logs.container_status(pod, name) or {}).get("state") or {}
    if "running" not in state:
        raise handshake.HandshakeRefused(f'container "{name}" in pod "{pod["metadata"]["name"]}" is not running')
    return name


def _has_terminal(pod: Object, name: str) -> bool:
    """Return whether the container has a terminal, regardless of what an attaching client assumes."""
    return bool((logs.container_spec(pod, name) or {}).get("tty"))


def _refusal(error: handshake.HandshakeRefused) -> web.Response:
    response = web.Response(status=error.code, text=str(error))
    for name, value in error.headers:
        response.headers.add(name, value)
    return response
