"""A taken-over connection's bounds, with a transport that a test plays."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

import pytest

from hpk.node.streams import wire

if TYPE_CHECKING:
    from aiohttp import web


class Transport:
    """As much of an asyncio.Transport as a wire uses; what is written stays unsent."""

    def __init__(self, ours: socket.socket) -> None:
        self.ours = ours
        self.written = b""
        self.is_reading = True
        self.is_closed = self.is_aborted = False

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, *, high: int) -> None:
        assert high == wire.MOST_UNSENT_BYTES

    def set_protocol(self, protocol: object) -> None:
        assert isinstance(protocol, wire.Wire)

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        self.is_reading = True

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self.ours

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Taken:
    """A wire that has taken a connection over."""

    def __init__(self) -> None:
        self.theirs, ours = socket.socketpair()
        self.transport = Transport(ours)
        self.got = b""
        self.wire = wire.Wire(self._got)
        request: Any = type("Request", (), {"transport": self.transport})
        assert self.wire.take(cast("web.Request", request), b"101")

    def _got(self, data: bytes) -> None:
        self.got += data

    def close(self) -> None:
        """Nothing is left."""
        self.wire.connection_lost(None)
        self.theirs.close()
        self.transport.ours.close()


@pytest.fixture
async def taken() -> Any:
    """A wire that has taken a connection over."""
    made = Taken()
    yield made
    made.close()


async def test_reading_stops_and_goes_on(taken: Taken) -> None:
    """When what is held is too much, and when half of it is used."""
    inbox = wire.Inbox(taken.wire)
    part = bytes(wire.MOST_HELD_BYTES // 2)
    for _ in range(2):
        inbox.put(part)
    assert not taken.transport.is_reading
    assert await inbox.read() == part
    assert not taken.transport.is_reading
    assert await inbox.read() == part
    assert taken.transport.is_reading
    inbox.put(part)
    inbox.drop()
    inbox.put(part)
    assert taken.wire._held == 0
    assert await inbox.read() == b""


async def test_single_bytes_cost_more_than_a_byte(taken: Taken) -> None:
    """Else a client could make us hold a hundred times its due; they are read in one."""
    inbox = wire.Inbox(taken.wire)
    count = wire.MOST_HELD_BYTES // wire.PART_BYTES
    for _ in range(count):
        inbox.put(b"x")
    assert not taken.transport.is_reading
    assert await inbox.read() == b"x" * count
    assert taken.wire._held == 0


async def test_senders_wait_for_room_and_take_turns(taken: Taken) -> None:
    """When there is room for one, one sends."""
    taken.wire.pause_writing()
    sending = [asyncio.create_task(taken.wire.send(b"%d" % index)) for index in range(3)]
    await asyncio.sleep(0)
    assert taken.transport.written == b"101"
    taken.wire.resume_writing()
    taken.wire.pause_writing()
    await sending[0]
    taken.wire.resume_writing()
    await asyncio.gather(*sending)
    assert taken.transport.written == b"101012"
    taken.wire.pause_writing()
    last = asyncio.create_task(taken.wire.send(b"lost"))
    taken.wire.connection_lost(ConnectionError("gone"))
    await last
    assert not taken.transport.written.endswith(b"lost")


async def test_a_client_that_asks_and_never_reads_is_cut_off(taken: Taken) -> None:
    """Answers that nobody reads are not heaped up."""
    most = wire.MOST_UNSENT_BYTES + wire.MOST_UNASKED_BYTES
    while not taken.transport.is_aborted:
        assert len(taken.transport.written) <= most
        taken.wire.send_now(bytes(4096))


async def test_a_client_that_hangs_up_is_seen_while_nobody_reads(taken: Taken) -> None:
    """And only then: while we read, asyncio tells us."""
    taken.wire._look_after()
    assert not taken.transport.is_aborted
    taken.theirs.close()
    taken.wire._look_after()
    assert not taken.transport.is_aborted
    taken.wire.hold(wire.MOST_HELD_BYTES + 1)
    taken.wire._look_after()
    assert taken.transport.is_aborted


async def test_silence_ends_it(taken: Taken) -> None:
    """After four hours in which nothing came or went."""
    taken.wire._look_after()
    assert not taken.transport.is_aborted
    taken.wire._active_at -= wire.IDLE_SECONDS
    taken.wire.send_now(b"news")
    taken.wire._look_after()
    assert not taken.transport.is_aborted
    taken.wire._active_at -= wire.IDLE_SECONDS
    taken.wire._look_after()
    assert taken.transport.is_aborted


async def test_hanging_up_reads_on(taken: Taken) -> None:
    """TLS must see the client's goodbye; what else comes is thrown away, and nothing more is sent."""
    taken.wire.hold(wire.MOST_HELD_BYTES + 1)
    taken.wire.hang_up()
    assert taken.transport.is_closed
    assert taken.transport.is_reading
    taken.wire.data_received(b"late")
    await taken.wire.send(b"late")
    assert (taken.got, taken.transport.written) == (b"", b"101")


async def test_a_connection_that_is_gone_is_not_taken() -> None:
    """The client left between the request and the answer."""
    made = wire.Wire(lambda _: None)
    request: Any = type("Request", (), {"transport": None})
    assert not made.take(cast("web.Request", request), b"101")
    assert made.lost.done()
