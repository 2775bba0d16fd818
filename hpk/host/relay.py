"""The relay: a tunnel's end in the control plane's job; and the protocol of both ends, which multiplexes connections.

    python3 host.pyz relay PORT

It connects what the other end (:mod:`.tunnel`) opens to PORT on its own loopback. It ends with its standard input, so
nothing stays in the job when the other end's host fails.

The first line is a greeting; output of the site's own scripts before it is skipped. Then both ends send frames,
``uint8 kind | uint32 channel | uint32 size | payload | newline``, big-endian. The newline makes srun, which buffers
lines, pass them on. On each channel an end sends at most WINDOW bytes that the other has not passed on, so a client
that does not read holds up nobody else.
"""

import asyncio
import contextlib
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple

    Streams = Tuple[asyncio.StreamReader, asyncio.StreamWriter]

GREETING = b"hpk-tunnel 1"
LOOPBACK = "127.0.0.1"
HEAD = struct.Struct(">BII")
OPEN, DATA, END, CLOSE, MORE, BEAT = range(6)
"""Kinds of frames: a connection, its bytes, the end of its bytes, its loss; room for more bytes; a sign of life."""
CHUNK = 32 << 10
WINDOW = 256 << 10

BEAT_SECONDS = 15.0
SILENCE_SECONDS = 60.0
"""The other end is taken for gone after so long without a sign of life."""
CHECK_SECONDS = 5.0


class Multiplexer:
    """Any number of connections over one pair of streams.

    Connections that the other end opens lead to ``port`` on this host's loopback; if that is None, it may open none.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: "int | None" = None) -> None:
        self.channels = {}  # type: dict[int, Channel]
        self.port = port
        self._reader = reader
        self._writer = writer
        self._number = 0
        self._draining = asyncio.Lock()  # older Pythons allow only one drain at a time

    async def run(self) -> None:
        """Carry connections until the other end is gone."""
        beating = asyncio.ensure_future(self._beat())
        try:
            while True:
                head = await asyncio.wait_for(self._reader.readexactly(HEAD.size), SILENCE_SECONDS)
                kind, number, size = HEAD.unpack(head)
                payload = await asyncio.wait_for(self._reader.readexactly(size + 1), SILENCE_SECONDS)
                self._receive(kind, number, payload[:-1])
        except (asyncio.IncompleteReadError, asyncio.TimeoutError, OSError):
            return
        finally:
            beating.cancel()
            for channel in list(self.channels.values()):
                channel.task.cancel()

    def open(self, streams: "Streams") -> None:
        """Carry this connection."""
        self._number += 1
        self.channels[self._number] = Channel(self, self._number, streams)

    async def send(self, kind: int, number: int = 0, payload: bytes = b"") -> None:
        """Send a frame; raise OSError if the other end is gone."""
        self._writer.write(HEAD.pack(kind, number, len(payload)) + payload + b"\n")
        async with self._draining:
            await self._writer.drain()

    def _receive(self, kind: int, number: int, payload: bytes) -> None:
        if kind == OPEN and self.port is not None:
            self.channels[number] = Channel(self, number)
        channel = self.channels.get(number)
        if channel is None:
            return  # it has been closed here
        if kind == DATA:
            channel.inbox.put_nowait(payload)
        elif kind == END:
            channel.inbox.put_nowait(b"")
        elif kind == MORE:
            channel.add_room(*struct.unpack(">I", payload))
        elif kind == CLOSE:
            channel.task.cancel()

    async def _beat(self) -> None:
        with contextlib.suppress(OSError):  # run() notices, too
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                await self.send(BEAT)


class Channel:
    """One connection of a link: the given streams, or else a new connection to the link's port."""

    def __init__(self, link: Multiplexer, number: int, streams: "Streams | None" = None) -> None:
        self.inbox = asyncio.Queue()  # type: asyncio.Queue[bytes]
        self._link = link
        self._number = number
        self._streams = streams
        self._room = WINDOW
        self._has_room = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())
        self.task.add_done_callback(self._drop)

    def add_room(self, size: int) -> None:
        """Allow this many more bytes: the other end has passed them on."""
        self._room += size
        self._has_room.set()

    async def _run(self) -> None:
        """Carry both directions until both have ended, or one broke."""
        pumps = []  # type: list[asyncio.Future[None]]
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection(LOOPBACK, self._link.port)
            else:
                await self._link.send(OPEN, self._number)
            reader, writer = self._streams
            pumps = [asyncio.ensure_future(self._outward(reader)), asyncio.ensure_future(self._inward(writer))]
            await asyncio.gather(*pumps)
            writer.close()
            self._streams = None
        except OSError:
            with contextlib.suppress(OSError):  # the link itself is gone
                await self._link.send(CLOSE, self._number)
        finally:
            for pump in pumps:
                pump.cancel()

    def _drop(self, task: "asyncio.Future[None]") -> None:
        """Forget the channel, however it ended, and close its connection."""
        self._link.channels.pop(self._number, None)
        if self._streams is not None:
            self._streams[1].transport.abort()
        if not task.cancelled() and task.exception() is not None:
            raise task.exception()  # type: ignore[misc]

    async def _outward(self, reader: asyncio.StreamReader) -> None:
        """Carry data from the connection to the other end."""
        while True:
            while self._room <= 0:
                self._has_room.clear()
                await self._has_room.wait()
            data = await reader.read(min(CHUNK, self._room))
            if not data:
                await self._link.send(END, self._number)
                return
            self._room -= len(data)
            await self._link.send(DATA, self._number, data)

    async def _inward(self, writer: asyncio.StreamWriter) -> None:
        """Carry data from the other end to the connection."""
        while True:
            data = await self.inbox.get()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            await self._link.send(MORE, self._number, struct.pack(">I", len(data)))


async def serve(port: int, stdin: "Any", stdout: "Any") -> None:
    """Greet, then connect what the other end opens to this port, until it ends.

    Text after the greeting, in its line, says why that is impossible.
    """
    loop = asyncio.get_event_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    problem = b""
    try:
        _, checking = await asyncio.wait_for(asyncio.open_connection(LOOPBACK, port), CHECK_SECONDS)
        checking.close()
    except (OSError, asyncio.TimeoutError) as error:
        number = getattr(error, "errno", None)
        problem = b" " + (os.strerror(number) if number else "no answer").encode("utf-8", "replace")
    writer.write(GREETING + problem + b"\n")
    if not problem:
        await Multiplexer(reader, writer, port).run()
    transport.close()


def main(arguments: "list[str]") -> int:
    """Relay until standard input ends."""
    (port,) = arguments
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    stdin, stdout = (os.fdopen(number, mode, 0) for number, mode in ((0, "rb"), (1, "wb")))
    loop.run_until_complete(serve(int(port), stdin, stdout))
    return 0
