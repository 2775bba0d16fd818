"""Exec and attach: a SPDY or WebSocket client on one side, a session in a pod on the other.

Source: pkg/streaming/remotecommand of k8s.io/cri-streaming.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from hpk import aiotasks, errors
from hpk.link import sessions
from hpk.node.streams import channels, connection, handshake, status, wire

if TYPE_CHECKING:
    from collections.abc import Coroutine

LOG = structlog.get_logger(__name__)

STREAMS_SECONDS = 30.0
"""How long a SPDY client may take to open its streams."""
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""WebSocket channels; the first three are also the session's."""
NAMES = ("stdin", "stdout", "stderr", "error", "resize")
"""SPDY stream types, by channel."""
MOST_SIZE_BYTES = 4096
"""The limit for an incomplete terminal size."""
LARGEST_SIZE = 65535
SIZE_SECONDS = 1.0
"""How long a command waits for its terminal's size, which programs read when they start. Some clients send none."""


class RemoteClient(Protocol):
    """A client of any protocol.

    Attributes:
        stdin: Its input to the program.
        sizes: Changes of its terminal's size.
    """

    stdin: wire.Inbox
    sizes: wire.Inbox

    async def is_ready(self) -> bool:
        """Wait for all streams; return whether the client is ready."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send output, waiting for space; drop it if the client did not ask for this channel."""

    def end(self, how: status.SessionStatus) -> None:
        """Send the status; afterwards nothing is sent or read."""

    def leave(self) -> None:
        """Flush, then close the connection."""


class SpdyClient:
    """A client that speaks SPDY."""

    def __init__(self, agreed: handshake.Handshake, wanted: handshake.StreamOptions) -> None:
        self._has_json = agreed.has_json_status
        flags = (wanted.stdin, wanted.stdout, wanted.stderr, True, wanted.tty and agreed.has_resize)
        self._missing = {name for name, is_wanted in zip(NAMES, flags, strict=True) if is_wanted}
        self._streams: dict[str, connection.Stream] = {}
        self._are_there = asyncio.Event()
        self._connection = connection.Connection(on_open=self._accept, most_streams=len(NAMES))
        self.wire = self._connection.carrier = wire.Wire(self._connection.feed)
        self.stdin = self.sizes = wire.Inbox(self.wire)

    async def is_ready(self) -> bool:
        """Wait for all streams; return whether they were opened in time."""
        is_ready = await aiotasks.in_time(self._are_there.wait(), STREAMS_SECONDS)
        if not is_ready:
            LOG.warning("Disconnecting a client that does not open its streams", missing=sorted(self._missing))
        return is_ready

    async def send(self, channel: int, data: bytes) -> None:
        """Send output."""
        stream = self._streams.get(NAMES[channel])
        if stream is not None:
            await stream.send(data)

    def end(self, how: status.SessionStatus) -> None:
        """Close all streams, the error stream with its status last."""
        for name in ("stdin", "resize"):
            stream = self._streams.get(name)
            if stream is not None and stream.is_heard:
                stream.reset()  # a FIN would let the client go on sending
            elif stream is not None:
                stream.close()
        for name in ("stdout", "stderr"):
            if name in self._streams:
                self._streams[name].close()
        if "error" in self._streams:
            self._streams["error"].close(how.as_json() if self._has_json else how.as_text())

    def leave(self) -> None:
        """Close the connection."""
        self._connection.leave()

    def _accept(self, stream: connection.Stream) -> bool:
        name = stream.headers.get("streamtype", "")
        if name not in self._missing:
            return False
        self._missing.remove(name)
        self._streams[name] = stream
        if name == "stdin":
            self.stdin = stream.inbox
        elif name == "resize":
            self.sizes = stream.inbox
        else:
            stream.inbox.drop()
        if name == "error":
            stream.on_reset = self._connection.leave  # a client that resets the error stream has left
        if not self._missing:
            self._are_there.set()
        return True


class WebSocketClient:
    """A client that speaks one of the WebSocket subprotocols."""

    def __init__(self, agreed: handshake.Handshake, wanted: handshake.StreamOptions) -> None:
        self._has_json = agreed.has_json_status
        self._outputs = {STDOUT: wanted.stdout, STDERR: wanted.stderr}
        self.wire = wire.Wire(self._feed)
        self.stdin, self.sizes = wire.Inbox(self.wire), wire.Inbox(self.wire)
        if not wanted.stdin:
            self.stdin.drop()
        self._channels = channels.Channels(
            self.wire,
            {STDIN: self.stdin, RESIZE: self.sizes},
            is_base64=agreed.is_base64,
            can_close=agreed.protocol == handshake.V5,
        )

    async def is_ready(self) -> bool:
        """Signal readiness with an empty message on the lowest channel that the client reads."""
        lowest = next((channel for channel, is_wanted in self._outputs.items() if is_wanted), ERROR)
        await self._channels.send(lowest, b"")
        return True

    async def send(self, channel: int, data: bytes) -> None:
        """Send output."""
        if self._outputs.get(channel):
            await self._channels.send(channel, data)

    def end(self, how: status.SessionStatus) -> None:
        """Send the status, then a close frame."""
        self.stdin.drop()
        self.sizes.drop()
        told = how.as_json() if self._has_json else how.as_text()
        if told:
            self._channels.send_now(ERROR, told)
        self._channels.socket.say_goodbye()

    def leave(self) -> None:
        """Close the connection."""
        self._channels.socket.leave()

    def _feed(self, data: bytes) -> None:
        self._channels.socket.feed(data)


async def serve(
    client: RemoteClient, opener: sessions.SessionOpener, uid: str, request: sessions.Exec | sessions.Attach
) -> None:
    """Carry one session to its end, and send the client the status of any outcome."""
    doing = "executing command in container" if isinstance(request, sessions.Exec) else "attaching to container"
    try:
        if not await client.is_ready():
            client.leave()
            return
        ended = await _carried(client, opener, uid, request)
        client.end(status.of(ended, doing=doing))
    except asyncio.CancelledError:
        client.end(status.failed("the kubelet is stopping", doing=doing))
        client.leave()
        raise
    except errors.HpkError as error:
        client.end(status.failed(str(error), doing=doing))
    except Exception:
        LOG.exception("Cannot carry a session", uid=uid, container=request.container)
        client.end(status.failed("internal error of the kubelet; see its log", doing=doing))


async def _carried(
    client: RemoteClient, opener: sessions.SessionOpener, uid: str, request: sessions.Exec | sessions.Attach
) -> sessions.Ended:
    """Open the session and carry it; abort it if this is cancelled."""
    sizes = Sizes(client.sizes)
    if isinstance(request, sessions.Exec) and request.tty:
        request = dataclasses.replace(request, size=await sizes.first())
    session = await opener.open(uid, request)
    try:
        async with asyncio.TaskGroup() as group:
            inputs: list[Coroutine[Any, Any, None]] = [_sizes(sizes, session)] if request.tty else []
            if request.stdin:
                inputs.append(_stdin(client.stdin, session))
            tasks = [group.create_task(one) for one in inputs]
            ended = await _outputs(client, session)
            for task in tasks:
                task.cancel()
    finally:
        await session.abort()
    if ended.exit_code and ended.error:
        # The status has no field for this error, so write it where a shell would.
        await client.send(STDERR if request.stderr and not request.tty else STDOUT, f"{ended.error}\n".encode())
    return ended


async def _outputs(client: RemoteClient, session: sessions.Session) -> sessions.Ended:
    while True:
        match await session.receive():
            case sessions.Data(channel, data):
                await client.send(channel, data)
            case sessions.Ended() as ended:
                return ended


async def _stdin(inbox: wire.Inbox, session: sessions.Session) -> None:
    while data := await inbox.read():
        await session.send(sessions.STDIN, data)
    await session.close(sessions.STDIN)


async def _sizes(sizes: Sizes, session: sessions.Session) -> None:
    while size := await sizes.read():
        await session.resize(width=size[0], height=size[1])


class Sizes:
    """A parser of terminal sizes: consecutive JSON objects in arbitrary pieces."""

    def __init__(self, inbox: wire.Inbox) -> None:
        self._inbox = inbox
        self._found: collections.deque[tuple[int, int]] = collections.deque()
        self._rest = b""

    async def first(self) -> tuple[int, int] | None:
        """Return the first size if it arrives in time: clients that know it send it at once.

        :meth:`read` returns it again, for agents too old to take it from the request.
        """
        for seconds in (SIZE_SECONDS, 0):  # take what arrived while the event loop was blocked, even after the timeout
            await aiotasks.in_time(self._find(), seconds)
        return self._found[0] if self._found else None

    async def read(self) -> tuple[int, int] | None:
        """Return the next columns and lines; None at the end."""
        await self._find()
        return self._found.popleft() if self._found else None

    async def _find(self) -> None:
        while not self._found and (data := await self._inbox.read()):
            self._found.extend(self.feed(data))

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """Return the sizes that these bytes complete; skip invalid ones."""
        *whole, self._rest = (self._rest + data).split(b"}")
        if len(self._rest) > MOST_SIZE_BYTES:
            self._rest = b""
        return [size for text in whole if (size := self._size(text + b"}"))]

    def _size(self, text: bytes) -> tuple[int, int] | None:
        if len(text) > MOST_SIZE_BYTES:
            return None
        try:
            found = json.loads(text.decode())
        except (ValueError, RecursionError):
            return None
        width, height = (found.get("Width"), found.get("Height")) if isinstance(found, dict) else (None, None)
        if not isinstance(width, int) or not isinstance(height, int):
            return None
        return (width, height) if 0 < width <= LARGEST_SIZE and 0 < height <= LARGEST_SIZE else None
