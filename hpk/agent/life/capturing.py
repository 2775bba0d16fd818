"""Reads a container's output for its log and for attached clients.

The event loop reads the pipes and forms the lines. A slow disk or client holds the container back, but for at most
:data:`PATIENCE_SECONDS`.
"""

from __future__ import annotations

import asyncio
import collections
import os
import time

from hpk import aiotasks
from hpk.agent.life import descriptors, logs, supervise

_CHUNK = 64 * 1024
_MOST_TAPPED = 256 << 10
PATIENCE_SECONDS = 10.0
"""How long a container waits for the disk before its output is dropped, and for attached clients."""
_KEPT_BYTES = 64 << 10
"""Size of the end of the log that is kept in memory, for a termination message that falls back to it."""


class Tap:
    """A client attached to a run: gets a copy of its output from now on.

    A client that does not read holds the container back, as with containerd, but not forever: after
    :data:`PATIENCE_SECONDS` without progress the tap ends, and the container continues.
    """

    def __init__(self) -> None:
        self._items: collections.deque[tuple[str, bytes]] = collections.deque()
        self._waiting = 0
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._is_patient = True
        self._has_ended = False
        self.was_slow = False
        """Whether it ended because nobody took the output."""

    async def offer(self, stream: str, data: bytes) -> None:
        """Add output; wait while too much is queued."""
        if self._has_ended:
            return
        self._items.append((stream, data))
        self._waiting += len(data)
        self._news.set()
        while self._waiting > _MOST_TAPPED and self._is_patient:
            self._room.clear()
            if not await aiotasks.in_time(self._room.wait(), PATIENCE_SECONDS):
                self.was_slow = True
                self.end()

    async def take(self) -> tuple[str, bytes] | None:
        """Return the next output with the name of its stream; None at the end."""
        while not self._items:
            if self._has_ended:
                return None
            self._news.clear()
            await self._news.wait()
        stream, data = self._items.popleft()
        self._waiting -= len(data)
        self._room.set()
        return stream, data

    def hurry(self) -> None:
        """Stop waiting for the client: the run has ended, and its last output must reach the log now."""
        self._is_patient = False
        self._room.set()

    def end(self) -> None:
        """End the output."""
        self._has_ended = True
        self._news.set()
        self.hurry()


class Capture:
    """Follows the output of one run until all its streams have ended."""

    def __init__(
        self, outputs: dict[str, int], *, file: logs.LogFile, writer: logs.Writer, keeps_end: bool = False
    ) -> None:
        self.end = b""
        """The last lines, if they are kept: for readers that cannot wait for the disk."""
        self._keeps_end = keeps_end
        self._file = file
        self._writer = writer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open = 0
        self._taps: set[Tap] = set()
        self.follow(outputs)
        writer.put(file, b"")  # an empty log is a log

    def follow(self, outputs: dict[str, int]) -> None:
        """Follow these streams, unless they are followed already."""
        for name, end in outputs.items():
            if name not in self._tasks:
                self._open += 1
                self._tasks[name] = asyncio.create_task(self._follow(name, end))

    def tap(self) -> Tap:
        """Return a copy of the output from now on; it ends with the streams."""
        made = Tap()
        self._taps.add(made)
        if not self._open:
            made.end()
        return made

    def untap(self, tap: Tap) -> None:
        """Drop a copy, and release whoever waits for it."""
        self._taps.discard(tap)
        tap.end()

    async def finish(self, *, timeout_seconds: float) -> None:
        """Wait until the streams have ended and are written; give up on a disk that hangs."""
        for tap in self._taps:
            tap.hurry()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        await aiotasks.cancel(*tasks)
        self._end_taps()
        self._writer.end(self._file)
        await self._writer.flushed(timeout_seconds=timeout_seconds)

    def _end_taps(self) -> None:
        for tap in self._taps:
            tap.end()

    async def _follow(self, name: str, descriptor: int) -> None:
        framer = logs.Framer(name)
        os.set_blocking(descriptor, False)
        try:
            while True:
                try:
                    data = os.read(descriptor, _CHUNK)
                except BlockingIOError:
                    await descriptors.readable(descriptor)
                    continue
                except OSError:  # a terminal whose last user has gone
                    data = b""
                if not data:
                    break
                try:
                    self._put(framer.feed(data, at_ns=time.time_ns()))
                    for tap in tuple(self._taps):
                        await tap.offer(name, data)
                    await self._make_room()
                except Exception as error:  # noqa: BLE001 - to stop reading would stop the container
                    self._file.add_lost(len(data))
                    supervise.fault(f"copy of {name}", error)
        finally:
            os.close(descriptor)
            self._put(framer.close(at_ns=time.time_ns()))
            self._open -= 1
            if not self._open:
                self._end_taps()

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._keeps_end:
            self.end = (self.end + data[-_KEPT_BYTES:])[-_KEPT_BYTES:]
        file = self._file
        if file.hangs:
            file.add_lost(len(data))
            return
        file.waiting += len(data)
        self._writer.put(file, data)

    async def _make_room(self) -> None:
        """Hold the container back while the disk is slow, but not forever."""
        file = self._file
        if file.hangs or file.has_room:
            await asyncio.sleep(0)  # give others a turn, however much this one writes
            return
        file.room.clear()
        if not await aiotasks.in_time(file.room.wait(), PATIENCE_SECONDS):
            file.give_up()
