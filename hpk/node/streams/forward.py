"""Port-forward: connections to ports of a pod, multiplexed over one client connection.

SPDY has no flow control here: if a pod reads nothing from one forwarded connection, all others of the same client wait
once ``MOST_HELD_BYTES`` have arrived for it (kubectl itself waits earlier).
Source: pkg/streaming/portforward of k8s.io/cri-streaming, and client-go's tools/portforward.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

import structlog

from hpk import aiotasks, errors
from hpk.link import sessions
from hpk.node.streams import channels, connection, handshake, wire

LOG = structlog.get_logger(__name__)

MOST_STREAMS = 1024
"""The limit per client; each forwarded connection takes two."""
MOST_HELD_BYTES = 4 << 20
PAIR_SECONDS = 30.0
"""How long the second stream of a pair may arrive after the first."""
TO_PORT, FROM_PORT = 0, 1
"""The channels of a session."""


class End(Protocol):
    """The client's end of one forwarded connection."""

    inbox: wire.Inbox

    async def send(self, data: bytes) -> None:
        """Send the port's output, waiting for space."""

    def close(self) -> None:
        """Signal the end of the port's output."""

    def finish(self, error: str) -> None:
        """Finish the connection, with an error if there was one."""


class Forwarder:
    """The forwarded connections of one client, each carried by a task."""

    def __init__(self, opener: sessions.SessionOpener, *, pod: str, uid: str) -> None:
        self._opener, self._pod, self._uid = opener, pod, uid
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, end: End, *, port: int, is_given_up: asyncio.Event) -> asyncio.Task[None]:
        """Start a task that carries one connection until the event is set."""
        task = asyncio.create_task(self._carry(end, port, is_given_up), name=f"forward {self._uid} {port}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel all connections."""
        await aiotasks.cancel(*self._tasks)

    async def _carry(self, end: End, port: int, is_given_up: asyncio.Event) -> None:
        error = ""
        try:
            error = await self._carried(end, port, is_given_up)
        except errors.HpkError as problem:
            error = str(problem)
        except Exception:
            LOG.exception("Cannot forward a connection", pod=self._pod, uid=self._uid, port=port)
            error = "internal error of the kubelet; see its log"
        finally:
            told = f"error forwarding port {port} to pod {self._pod}, uid {self._uid}: {error}"
            end.finish(told if error and not is_given_up.is_set() else "")

    async def _carried(self, end: End, port: int, is_given_up: asyncio.Event) -> str:
        """Open the session and carry it. Return the error, or an empty string."""
        session = await self._opener.open(self._uid, sessions.Forward(port=port))
        outward = asyncio.create_task(_from_port(end, session))
        inward = asyncio.create_task(_to_port(end, session))
        left = asyncio.create_task(is_given_up.wait())
        try:
            await asyncio.wait({outward, left}, return_when=asyncio.FIRST_COMPLETED)
            return outward.result() if outward.done() else ""
        finally:
            await aiotasks.cancel(outward, inward, left)
            await session.abort()


async def _to_port(end: End, session: sessions.Session) -> None:
    while data := await end.inbox.read():
        await session.send(TO_PORT, data)
    await session.close(TO_PORT)


async def _from_port(end: End, session: sessions.Session) -> str:
    while True:
        match await session.receive():
            case sessions.Data(_, data):
                await end.send(data)
            case sessions.Closed(channel):
                if channel == FROM_PORT:
                    end.close()
            case sessions.Ended() as ended:
                return ended.error


class SpdyForward:
    """A client that opens two SPDY streams for each connection: one for errors, one for data."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._connection = connection.Connection(on_open=self._accept, most_streams=MOST_STREAMS)
        self.wire = self._connection.carrier = wire.Wire(self._connection.feed, most_held=MOST_HELD_BYTES)
        self._halves: dict[str, _Half] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for half in self._halves.values():
                half.timer.cancel()
            await self._forwarder.close()
            self._connection.leave()

    def _accept(self, stream: connection.Stream) -> bool:
        kind, text = stream.headers.get("streamtype", ""), stream.headers.get("port", "")
        port = handshake.port(text)
        if kind not in ("error", "data") or port is None:
            LOG.info("Cannot forward: a stream's type or port is invalid", kind=kind[:20], port=text[:20])
            return False
        # The oldest clients send no request ID: the streams of a pair follow each other.
        number = stream.number if kind == "error" else stream.number - 2
        key = stream.headers.get("requestid", "") or f"#{number}"
        half = self._halves.pop(key, None)
        if half is None:
            timer = asyncio.get_running_loop().call_later(PAIR_SECONDS, self._give_up, key)
            self._halves[key] = _Half(kind, stream, timer)
            return True
        if half.kind == kind:
            self._halves[key] = half
            return False
        half.timer.cancel()
        error, data = (half.stream, stream) if half.kind == "error" else (stream, half.stream)
        error.inbox.drop()
        is_given_up = asyncio.Event()
        data.on_reset = error.on_reset = is_given_up.set
        self._forwarder.start(_Pair(data, error), port=port, is_given_up=is_given_up)
        return True

    def _give_up(self, key: str) -> None:
        half = self._halves.pop(key)
        LOG.info("Cannot forward: one of two streams did not arrive in time", kind=half.kind)
        half.stream.reset()


@dataclass(frozen=True)
class _Half:
    """A stream whose partner has not arrived yet."""

    kind: str
    stream: connection.Stream
    timer: asyncio.TimerHandle


class _Pair:
    """The two streams of a connection."""

    def __init__(self, data: connection.Stream, error: connection.Stream) -> None:
        self._data, self._error = data, error
        self.inbox = data.inbox
        self.send, self.close = data.send, data.close

    def finish(self, error: str) -> None:
        """Send the error and reset the data stream, or close both."""
        self.inbox.drop()
        if error:
            self._error.close(error.encode())
            self._data.reset()
        else:
            self._data.close()
            self._error.close()


class TunnelForward(SpdyForward):
    """A SPDY client tunnelled through WebSocket messages."""

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__(forwarder)
        self.wire = wire.Wire(self._feed, most_held=MOST_HELD_BYTES)
        self._tunnel = channels.WebSocketTunnel(self.wire, self._connection.feed)
        self._connection.carrier = self._tunnel

    def _feed(self, data: bytes) -> None:
        self._tunnel.socket.feed(data)


class WebSocketForward:
    """A WebSocket client whose query names the ports: channel 2i carries port i's data, 2i + 1 its errors."""

    def __init__(self, forwarder: Forwarder, agreed: handshake.Handshake, ports: tuple[int, ...]) -> None:
        self._forwarder, self._ports = forwarder, ports
        self.wire = wire.Wire(self._feed, most_held=MOST_HELD_BYTES)
        self._inboxes = {2 * index: wire.Inbox(self.wire) for index in range(len(ports))}
        self._channels = channels.Channels(self.wire, self._inboxes, is_base64=agreed.is_base64, can_close=False)

    async def run(self) -> None:
        """Serve until all connections are over."""
        tasks = []
        try:
            for index, port in enumerate(self._ports):
                data, error = 2 * index, 2 * index + 1
                for channel in (data, error):
                    await self._channels.send(channel, port.to_bytes(2, "little"))
                end = _Numbered(self._channels, self._inboxes[data], data=data, error=error)
                tasks.append(self._forwarder.start(end, port=port, is_given_up=asyncio.Event()))
            await asyncio.wait(tasks)
        finally:
            await self._forwarder.close()
            self._channels.socket.say_goodbye()

    def _feed(self, data: bytes) -> None:
        self._channels.socket.feed(data)


class _Numbered:
    """The two channels of a connection."""

    def __init__(self, below: channels.Channels, inbox: wire.Inbox, *, data: int, error: int) -> None:
        self._channels, self.inbox = below, inbox
        self._data, self._error = data, error

    async def send(self, data: bytes) -> None:
        """Send the port's output."""
        await self._channels.send(self._data, data)

    def close(self) -> None:
        """Do nothing: these protocols cannot signal it."""

    def finish(self, error: str) -> None:
        """Send the error, if any; success shows only when all connections are over."""
        self.inbox.drop()
        if error:
            self._channels.send_now(self._error, error.encode())
