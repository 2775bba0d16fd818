"""Exec and attach: a client of SPDY or of WebSockets on one side, a session in a pod on the other.

Source: pkg/streaming/remotecommand of k8s.io/cri-streaming.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from hpk import errors
from hpk.link import sessions
from hpk.node.streams import asked, channels, connection, status, wire

if TYPE_CHECKING:
    from collections.abc import Coroutine

LOG = structlog.get_logger(__name__)

STREAMS_SECONDS = 30.0
"""How long a SPDY client may take to open its streams."""
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
"""The channels of a WebSocket; the first three are those of a session too."""
NAMES = ("stdin", "stdout", "stderr", "error", "resize")
"""What SPDY calls them."""
MOST_SIZE_BYTES = 4096
"""Of what may be the beginning of a terminal's size."""
LARGEST_SIZE = 65535
SIZE_SECONDS = 1.0
"""How long a command waits for its terminal's size, which programs ask for when they start; some clients tell none."""


class Client(Protocol):
    """The client, whatever it speaks.

    Attributes:
        stdin: What it sends to the program.
        sizes: Its terminal's sizes, as they change.
    """

    stdin: wire.Inbox
    sizes: wire.Inbox

    async def is_ready(self) -> bool:
        """Whether it is there with all its streams, waiting for them."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send output, waiting for room; dropped if the client did not ask for this channel."""

    def end(self, how: status.Status) -> None:
        """Say how it ended: nothing more is sent, and nothing more is taken."""

    def leave(self) -> None:
        """Close the connection, after what is still to be sent."""


class SpdyClient:
    """A client that speaks SPDY."""

    def __init__(self, agreed: asked.Handshake, wanted: asked.Options) -> None:
        """Know which streams to expect."""
        self._has_json = agreed.has_json_status
        flags = (wanted.stdin, wanted.stdout, wanted.stderr, True, wanted.tty and agreed.has_resize)
        self._missing = {name for name, is_wanted in zip(NAMES, flags, strict=True) if is_wanted}
        self._streams: dict[str, connection.Stream] = {}
        self._are_there = asyncio.Event()
        self._connection = connection.Connection(on_open=self._accept, most_streams=len(NAMES))
        self.wire = self._connection.carrier = wire.Wire(self._connection.feed)
        self.stdin = self.sizes = wire.Inbox(self.wire)

    async def is_ready(self) -> bool:
        """Whether it has opened all streams in time."""
        try:
            async with asyncio.timeout(STREAMS_SECONDS):
                await self._are_there.wait()
        except TimeoutError:
            LOG.warning("Hanging up on a client that does not open its streams", missing=sorted(self._missing))
            return False
        return True

    async def send(self, channel: int, data: bytes) -> None:
        """Send output."""
        stream = self._streams.get(NAMES[channel])
        if stream is not None:
            await stream.send(data)

    def end(self, how: status.Status) -> None:
        """Say how it ended, each stream's end before the status."""
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
            stream.on_reset = self._connection.leave  # who does not want to hear the end has left
        if not self._missing:
            self._are_there.set()
        return True


class WebSocketClient:
    """A client that speaks one of the WebSocket subprotocols."""

    def __init__(self, agreed: asked.Handshake, wanted: asked.Options) -> None:
        """Know which channels there are."""
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
            can_close=agreed.protocol == asked.V5,
        )

    async def is_ready(self) -> bool:
        """Say that we are: an empty message on the lowest channel that the client reads."""
        lowest = next((channel for channel, is_wanted in self._outputs.items() if is_wanted), ERROR)
        await self._channels.send(lowest, b"")
        return True

    async def send(self, channel: int, data: bytes) -> None:
        """Send output."""
        if self._outputs.get(channel):
            await self._channels.send(channel, data)

    def end(self, how: status.Status) -> None:
        """Say how it ended, and that this was all."""
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


async def serve(client: Client, opener: sessions.Opener, uid: str, request: sessions.Exec | sessions.Attach) -> None:
    """Carry one session from its beginning to its end; the client is told how it ended, whatever that was."""
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
        client.end(status.failed("the kubelet failed; its log says why", doing=doing))


async def _carried(
    client: Client, opener: sessions.Opener, uid: str, request: sessions.Exec | sessions.Attach
) -> sessions.Ended:
    """Open the session and carry it; it is given up when this is cancelled."""
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
        # The status has no place for it: it goes where a shell would have written it.
        await client.send(STDERR if request.stderr and not request.tty else STDOUT, f"{ended.error}\n".encode())
    return ended


async def _outputs(client: Client, session: sessions.Session) -> sessions.Ended:
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
    """Reads a terminal's sizes: JSON objects one after the other, cut anyhow."""

    def __init__(self, inbox: wire.Inbox) -> None:
        """Know what they come from."""
        self._inbox = inbox
        self._found: collections.deque[tuple[int, int]] = collections.deque()
        self._rest = b""
        self._json = json.JSONDecoder()

    async def first(self) -> tuple[int, int] | None:
        """The first one, if it comes in time: a client that knows its terminal's size says it at once.

        It is read again: an agent may be too old to know it from the request.
        """
        for seconds in (SIZE_SECONDS, 0):  # what came while nothing of ours ran is there, though the time is over
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._find()
        return self._found[0] if self._found else None

    async def read(self) -> tuple[int, int] | None:
        """The next columns and lines; None when no more will come."""
        await self._find()
        return self._found.popleft() if self._found else None

    async def _find(self) -> None:
        while not self._found and (data := await self._inbox.read()):
            self._found.extend(self.feed(data))

    def feed(self, data: bytes) -> list[tuple[int, int]]:
        """The sizes that these bytes complete; what is none is passed over."""
        *whole, self._rest = (self._rest + data).split(b"}")
        if len(self._rest) > MOST_SIZE_BYTES:
            self._rest = b""
        return [size for text in whole if (size := self._size(text + b"}"))]

    def _size(self, text: bytes) -> tuple[int, int] | None:
        if len(text) > MOST_SIZE_BYTES:
            return None
        try:
            found = self._json.decode(text.decode())
        except (ValueError, RecursionError):
            return None
        width, height = (found.get("Width"), found.get("Height")) if isinstance(found, dict) else (None, None)
        if not isinstance(width, int) or not isinstance(height, int):
            return None
        return (width, height) if 0 < width <= LARGEST_SIZE and 0 < height <= LARGEST_SIZE else None
