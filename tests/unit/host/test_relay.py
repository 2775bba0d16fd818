"""Both ends of a tunnel carry any number of connections over two streams, byte for byte, and none holds up another."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hpk.host import pack, relay

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def pipe() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The two ends of a pipe."""
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(writing, "wb", 0))
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


class Pair:
    """A server behind a tunnel, and the tunnel's port; all in this process."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Streams] = asyncio.Queue()
        self.near: relay.Multiplexer
        self.running: list[asyncio.Task[None]] = []
        self.servers: list[asyncio.Server] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        """Have all of it."""
        server = await asyncio.start_server(lambda *streams: self.accepted.put_nowait(streams), "127.0.0.1", 0)
        to_far, from_near = await pipe()
        to_near, from_far = await pipe()
        self.near = relay.Multiplexer(to_near, from_near)
        far = relay.Multiplexer(to_far, from_far, server.sockets[0].getsockname()[1])
        self.running = [asyncio.create_task(self.near.run()), asyncio.create_task(far.run())]
        here = await asyncio.start_server(lambda *streams: self.near.open(streams), "127.0.0.1", 0)
        self.servers, self.writers = [server, here], [from_near, from_far]

    async def connect(self) -> tuple[Streams, Streams]:
        """A client's connection, and the same one as the server has it."""
        port = self.servers[1].sockets[0].getsockname()[1]
        client = await asyncio.open_connection("127.0.0.1", port)
        return client, await self.accepted.get()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """A tunnel, and its end."""
    made = Pair()
    await made.start()
    yield made
    for writer in made.writers:
        writer.close()
    await asyncio.gather(*made.running)
    for server in made.servers:
        server.close()


async def test_bytes_arrive_as_they_were(pair: Pair) -> None:
    """A megabyte of everything each way, on several connections at once."""
    data = os.urandom(1 << 20)

    async def exchange() -> None:
        (reader, writer), (their_reader, their_writer) = await pair.connect()
        writer.write(data)
        writer.write_eof()
        assert await their_reader.read() == data
        their_writer.write(data[::-1])
        their_writer.close()
        assert await reader.read() == data[::-1]
        writer.close()

    await asyncio.gather(*(exchange() for _ in range(3)))
    await asyncio.gather(*(channel.task for channel in pair.near.channels.values()))
    assert not pair.near.channels


async def test_who_does_not_read_holds_up_nobody(pair: Pair) -> None:
    """One client lets its data lie; another's conversation goes on, and no end keeps more than its window."""
    (_, lazy), (_, flooding) = await pair.connect()
    flooding.write(os.urandom(16 << 20))
    (reader, writer), (their_reader, their_writer) = await pair.connect()
    for word in (b"one", b"two"):
        writer.write(word)
        assert await their_reader.readexactly(3) == word
        their_writer.write(word)
        assert await reader.readexactly(3) == word
    assert all(channel.inbox.qsize() * relay.CHUNK <= relay.WINDOW for channel in pair.near.channels.values())
    for one in (flooding, lazy, writer, their_writer):
        one.transport.abort()


async def test_a_broken_connection_breaks_at_the_other_end(pair: Pair) -> None:
    """Neither end waits for a peer that is no more."""
    (reader, writer), (_, their_writer) = await pair.connect()
    their_writer.transport.abort()
    assert await reader.read() == b""
    writer.close()


async def test_a_port_where_nobody_listens_closes_the_connection(pair: Pair) -> None:
    """The client learns of it at once."""
    pair.servers[0].close()
    port = pair.servers[1].sockets[0].getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()


async def test_the_end_of_the_link_is_the_end_of_its_connections(pair: Pair) -> None:
    """Whoever hangs up closes all."""
    (reader, writer), (_, their_writer) = await pair.connect()
    pair.writers[1].close()
    assert await reader.read() == b""
    writer.close()
    their_writer.close()


def test_the_relay_says_when_nobody_listens(tmp_path: Path) -> None:
    """In its first line, after which it ends."""
    program = tmp_path / "host.pyz"
    program.write_bytes(pack.archive())
    command = [sys.executable, "-IS", str(program), "relay", "1"]
    done = subprocess.run(command, input=b"", capture_output=True, check=True)
    assert done.stdout == relay.GREETING + b" Connection refused\n"
