"""Clients of the kubelet's streams, byte by byte: frames are made and read here, not by the program's own code."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from hpk.node.streams import spdy

if TYPE_CHECKING:
    from tests.fakes import kubelet


@dataclass
class Answer:
    """The head of an HTTP answer, and its body if the connection is not taken over."""

    status: int
    headers: dict[str, str]
    body: str = ""


class Connection:
    """A client's connection to the kubelet's API."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, world: kubelet.World) -> Self:
        """Connect as the API server."""
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port, ssl=world.apiserver_tls)
        world.writers.append(writer)
        return cls(reader, writer)

    async def ask(self, method: str, path: str, headers: list[tuple[str, str]]) -> Answer:
        """Send a request without a body; the answer."""
        lines = [f"{method} {path} HTTP/1.1", "Host: kubelet", *(f"{name}: {value}" for name, value in headers)]
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        got = {name.lower(): value for line in head[1:] if line for name, _, value in [line.partition(": ")]}
        answer = Answer(int(head[0].split()[1]), got)
        if answer.status != 101:
            answer.body = (await self.reader.readexactly(int(got.get("content-length", 0)))).decode()
        return answer

    async def until_closed(self) -> None:
        """Return when the server has closed the connection, after whatever it still sent."""
        with contextlib.suppress(ConnectionError):
            await self.reader.read(-1)

    def close(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()


MASK = b"\x37\xfa\x21\x3d"
"""As in the RFC's examples: the same in every run."""
SPDY_HEADERS = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "0")]


class Spdy(Connection):
    """One that speaks SPDY.

    Attributes:
        streams: What came on each stream.
        ended: The streams that the server has closed.
        reset: Those that it has reset.
        replied: Those that it has accepted.
        pongs: Numbers of pings that came.
        has_gone: Whether GOAWAY came.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self._deflater = zlib.compressobj(9, zdict=spdy.DICTIONARY)
        self._inflater = zlib.decompressobj(zdict=spdy.DICTIONARY)
        self._next = 1
        self.streams: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.reset: dict[int, int] = {}
        self.replied: set[int] = set()
        self.pongs: list[int] = []
        self.has_gone = False

    async def start(self, path: str, *protocols: str) -> Answer:
        """Upgrade."""
        offered = [("X-Stream-Protocol-Version", name) for name in protocols]
        return await self.ask("POST", path, [*SPDY_HEADERS, *offered])

    def stream(self, *, is_last: bool = False, **headers: str) -> int:
        """Open a stream; its number."""
        number, self._next = self._next, self._next + 2
        self.writer.write(self.syn(number, headers, is_last=is_last))
        self.streams[number] = bytearray()
        return number

    def syn(self, number: int, headers: dict[str, str], *, is_last: bool = False) -> bytes:
        """SYN_STREAM."""
        block = struct.pack(">I", len(headers))
        for name, value in headers.items():
            block += struct.pack(">I", len(name)) + name.encode() + struct.pack(">I", len(value)) + value.encode()
        packed = self._deflater.compress(block) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        payload = struct.pack(">IIH", number, 0, 0) + packed
        return struct.pack(">HHI", 0x8003, 1, (1 << 24 if is_last else 0) | len(payload)) + payload

    def send(self, number: int, data: bytes, *, is_last: bool = False) -> None:
        """DATA."""
        self.writer.write(struct.pack(">II", number, (1 << 24 if is_last else 0) | len(data)) + data)

    def control(self, kind: int, payload: bytes) -> None:
        """Any control frame."""
        self.writer.write(struct.pack(">HHI", 0x8003, kind, len(payload)) + payload)

    async def frame(self) -> None:
        """Read one frame and take note of it."""
        first, second = struct.unpack(">II", await self.reader.readexactly(8))
        flags, payload = second >> 24, await self.reader.readexactly(second & 0xFFFFFF)
        if first & 0x80000000:
            number = struct.unpack_from(">I", payload)[0]
            match first & 0xFFFF:
                case 2:
                    assert self._inflater.decompress(payload[4:]) == bytes(4)
                    self.replied.add(number)
                case 3:
                    self.reset[number] = struct.unpack(">II", payload)[1]
                case 6:
                    self.pongs.append(number)
                case 7:
                    self.has_gone = True
        else:
            self.streams[first] += payload
            if flags & 1:
                self.ended.add(first)

    async def until_replied(self, *numbers: int) -> None:
        """Read until these streams are accepted."""
        while not self.replied >= set(numbers):
            await self.frame()

    async def until_ended(self, *numbers: int) -> None:
        """Read until the server has closed or reset these streams."""
        while not self.ended | set(self.reset) >= set(numbers):
            await self.frame()

    async def until(self, number: int, count: int) -> bytes:
        """Read until so many bytes came on a stream; what came."""
        while len(self.streams[number]) < count:
            await self.frame()
        return bytes(self.streams[number])

    async def remote(self, path: str, protocol: str, *kinds: str) -> tuple[int, ...]:
        """Upgrade for exec or attach, and open the error stream and these, each when the last is accepted."""
        assert (await self.start(path, protocol)).status == 101
        numbers = []
        for kind in ("error", *kinds):
            numbers.append(self.stream(streamtype=kind))
            await self.until_replied(numbers[-1])
        return tuple(numbers)

    async def pair(self, port: int, request: int) -> tuple[int, int]:
        """Open the two streams of a forwarded connection, as client-go does; data, error."""
        error = self.stream(streamtype="error", port=str(port), requestid=str(request))
        await self.until_replied(error)
        self.send(error, b"", is_last=True)
        data = self.stream(streamtype="data", port=str(port), requestid=str(request))
        await self.until_replied(data)
        return data, error


class WebSocket(Connection):
    """One that speaks WebSocket."""

    async def start(
        self, path: str, *protocols: str, method: str = "GET", key: str = "", version: str = "13"
    ) -> Answer:
        """Upgrade."""
        headers = [
            ("Connection", "Upgrade"),
            ("Upgrade", "websocket"),
            ("Sec-WebSocket-Version", version),
            ("Sec-WebSocket-Key", key or base64.b64encode(os.urandom(16)).decode()),
        ]
        if protocols:
            headers.append(("Sec-WebSocket-Protocol", ", ".join(protocols)))
        return await self.ask(method, path, headers)

    def send(self, data: bytes, opcode: int = 2, *, is_final: bool = True) -> None:
        """A masked frame."""
        self.writer.write(masked(data, opcode, is_final=is_final))

    async def frame(self) -> tuple[int, bytes]:
        """The next frame: opcode and payload."""
        first, second = await self.reader.readexactly(2)
        assert first & 0x80
        assert not second & 0x80
        length = second
        if second == 126:
            (length,) = struct.unpack(">H", await self.reader.readexactly(2))
        elif second == 127:
            (length,) = struct.unpack(">Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(length)

    async def messages(self) -> list[tuple[int, bytes]]:
        """All messages until the server's close frame, which is answered and comes last as opcode 8."""
        found = []
        while True:
            found.append(await self.frame())
            if found[-1][0] == 8:
                self.send(found[-1][1], 8)
                return found


def masked(data: bytes, opcode: int = 2, *, is_final: bool = True) -> bytes:
    """A client's frame."""
    first = (0x80 if is_final else 0) | opcode
    if len(data) < 126:
        head = struct.pack(">BB", first, 0x80 | len(data))
    elif len(data) < 1 << 16:
        head = struct.pack(">BBH", first, 0xFE, len(data))
    else:
        head = struct.pack(">BBQ", first, 0xFF, len(data))
    return head + MASK + bytes(byte ^ MASK[index % 4] for index, byte in enumerate(data))
