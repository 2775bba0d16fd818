"""A connection taken over from aiohttp: bytes in both directions, with bounded buffers.

docs/adr/0002-kubelet-streams.md describes how it is taken over and how it must end.
"""

from __future__ import annotations

import asyncio
import collections
import select
from typing import TYPE_CHECKING, Protocol

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web

LOG = structlog.get_logger(__name__)

MOST_HELD_BYTES = 1 << 20
"""Received bytes not yet used, on the whole connection. Above this, reading pauses."""
MOST_UNSENT_BYTES = 512 << 10
"""Bytes not yet sent. Above this, senders wait."""
MOST_UNASKED_BYTES = 1 << 20
"""The same for answers to a client (to pings, say) that reads none of them. Above this, it is disconnected."""
READ_BYTES = 512 << 10
"""The most bytes passed on at a time."""
PART_BYTES = 96
"""The overhead of a part: a client that sends single bytes must not get a hundred times its share of memory."""
IDLE_SECONDS = 4 * 3600.0
"""The same as the kubelet's streamingConnectionIdleTimeout."""
FINISH_SECONDS = 15 * 60.0
"""How long a client may take to read the last bytes and hang up. If we hung up first while it still sends (pings, say),
the kernel would discard its unread bytes: a slow client would miss the end without an error."""
LOOK_SECONDS = 5.0
"""Pause between checks whether a client is still there."""


class Carrier(Protocol):
    """A byte transport below a protocol: a :class:`Wire`, or a tunnel in one."""

    async def send(self, *parts: bytes) -> None:
        """Send bytes, and wait until the client has read most of those before."""

    def send_now(self, data: bytes) -> None:
        """Send a few bytes without waiting."""

    def hold(self, count: int) -> None:
        """Count bytes as received and not yet used."""

    def release(self, count: int) -> None:
        """Count bytes as used."""

    def hang_up(self) -> None:
        """Flush, then close."""


class Wire(asyncio.Protocol):
    """The connection.

    Attributes:
        lost: Done when the connection is over, whoever ended it.
    """

    def __init__(self, on_bytes: Callable[[bytes], None], *, most_held: int = MOST_HELD_BYTES) -> None:
        self._on_bytes, self._most_held = on_bytes, most_held
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._held = 0
        self._is_paused = self._is_closing = False
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._turn = asyncio.Lock()
        self._active_at = self._loop.time()
        self._look: asyncio.TimerHandle | None = None

    def take(self, request: web.Request, head: bytes) -> bool:
        """Take over the request's connection and send the response head. Return whether it was still there."""
        transport = request.transport
        if transport is None or transport.is_closing():
            self.connection_lost(None)
            return False
        self._transport = transport
        self._transport.set_write_buffer_limits(high=MOST_UNSENT_BYTES)
        self._transport.set_protocol(self)
        self._transport.write(head)
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_after)
        return True

    # Called by asyncio.

    def data_received(self, data: bytes) -> None:
        """Pass on received bytes."""
        self._active_at = self._loop.time()
        if not self._is_closing:
            self._on_bytes(data)

    def pause_writing(self) -> None:
        """Make senders wait: the client reads too slowly."""
        self._may_send.clear()

    def resume_writing(self) -> None:
        """Let senders continue: the client has read most of the bytes."""
        self._active_at = self._loop.time()
        self._may_send.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Mark the connection as over."""
        if exc is not None:
            LOG.debug("A client's connection broke", error=str(exc))
        if self._look is not None:
            self._look.cancel()
        self._is_closing = True
        self._may_send.set()
        if not self.lost.done():
            self.lost.set_result(None)

    # Called by the protocols above.

    async def send(self, *parts: bytes) -> None:
        """Send bytes, and wait until the client has read most of those before; send nothing if it is gone."""
        async with self._turn:  # otherwise all waiting senders would send once there is space for one
            await self._may_send.wait()
            self._write(b"".join(parts) if len(parts) > 1 else parts[0])

    def send_now(self, data: bytes) -> None:
        """Send a few bytes without waiting; disconnect a client that causes them and reads nothing."""
        self._write(data)
        unsent = self._transport.get_write_buffer_size() if self._transport else 0
        if unsent > MOST_UNSENT_BYTES + MOST_UNASKED_BYTES and not self._is_closing:
            LOG.warning("Disconnecting a client that sends requests and does not read the answers", unsent=unsent)
            self.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_closing and data:
            self._active_at = self._loop.time()
            self._transport.write(data)

    def hold(self, count: int) -> None:
        """Count bytes as received and not yet used; pause reading if there are too many."""
        self._held += count
        if self._held > self._most_held and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def release(self, count: int) -> None:
        """Count bytes as used; resume reading when half of the buffer is free."""
        self._held -= count
        if self._is_paused and self._held <= self._most_held // 2 and not self.lost.done():
            self._is_paused = False
            assert self._transport is not None
            self._transport.resume_reading()

    def hang_up(self) -> None:
        """Flush, then close; drop what still arrives."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            if self._is_paused:
                self._transport.resume_reading()  # else TLS would miss the client's close_notify
            self._transport.close()

    def abort(self) -> None:
        """Close without flushing."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    async def wait_for_the_client(self, *, seconds: float) -> None:
        """Wait until the client has hung up, and hang up after so many seconds."""
        await asyncio.wait({self.lost}, timeout=seconds)
        if not self.lost.done():
            LOG.info("Closing a connection that the client did not close", after_seconds=seconds)
            self.abort()

    def _look_after(self) -> None:
        """Detect what asyncio does not: an idle client, and one that hangs up while reading is paused."""
        if self.lost.done() or self._transport is None:
            return
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_after)
        if self._loop.time() - self._active_at > IDLE_SECONDS:
            LOG.info("Closing an idle connection", seconds=IDLE_SECONDS)
            self.abort()
        elif self._is_paused and _has_hung_up(self._transport.get_extra_info("socket")):
            self.abort()


def _has_hung_up(socket: object) -> bool:
    descriptor = socket.fileno() if hasattr(socket, "fileno") else -1
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLRDHUP)
    return bool(poll.poll(0))


class Inbox:
    """Received bytes of one stream that are not yet used. The connection bounds them."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._parts: collections.deque[bytes] = collections.deque()
        self._is_over = False
        self._news = asyncio.Event()

    def put(self, data: bytes) -> None:
        """Append received bytes."""
        if data and not self._is_over:
            self._parts.append(data)
            self._carrier.hold(len(data) + PART_BYTES)
            self._news.set()

    def end(self) -> None:
        """Mark the end of input; what is there can still be read."""
        self._is_over = True
        self._news.set()

    def drop(self) -> None:
        """Discard what is there and what still arrives."""
        self.end()
        self._carrier.release(sum(len(part) + PART_BYTES for part in self._parts))
        self._parts.clear()

    async def read(self) -> bytes:
        """Return bytes, at most ``READ_BYTES`` unless they arrived as one part; empty at the end."""
        while not self._parts:
            if self._is_over:
                return b""
            self._news.clear()
            await self._news.wait()
        first = self._parts.popleft()
        if len(first) >= READ_BYTES or not self._parts:
            self._carrier.release(len(first) + PART_BYTES)
            return first
        taken, count = [first], len(first)
        while self._parts and count + len(self._parts[0]) <= READ_BYTES:
            taken.append(self._parts.popleft())
            count += len(taken[-1])
        self._carrier.release(count + PART_BYTES * len(taken))
        return b"".join(taken)
