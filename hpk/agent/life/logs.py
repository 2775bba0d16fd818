"""Containers' output as CRI log files: ``<RFC 3339 nanoseconds> stdout F <line>``.

The event loop reads the pipes and forms the lines; one thread of the pod writes them, so that a slow shared file
system holds up nothing else.  A disk that refuses (full, gone) loses lines, and one that hangs loses them after
:data:`PATIENCE_SECONDS`; either way the container goes on, and an event and a line in the file say what is missing.
"""

from __future__ import annotations

import asyncio
import collections
import errno
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.agent.life import descriptors, supervise

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_LINE = 16 * 1024
"""Bytes; a longer line is written in parts, as containerd does."""
_CHUNK = 64 * 1024
_NEWLINE = 10
_MOST_WAITING = 4 << 20
_MOST_TAPPED = 256 << 10
PATIENCE_SECONDS = 10.0
"""How long a container waits for the disk before its output is thrown away, and for who is attached to it."""
_KEPT_BYTES = 64 << 10
"""Of the log's end, in memory, for a termination message that falls back to it."""


class Limits:
    """How much one run may log: so many files, and how large one grows (containerLogMaxFiles, containerLogMaxSize)."""

    def __init__(self, file_bytes: int = 10 << 20, files: int = 5) -> None:
        self.file_bytes, self.files = file_bytes, files


class Framer:
    """Turns one stream's bytes into CRI lines; pure."""

    def __init__(self, stream: str) -> None:
        self._tags = {end: f" {stream} {end} ".encode() for end in ("F", "P")}
        self._rest = b""

    def feed(self, data: bytes, *, at_ns: int) -> bytes:
        """The lines that are complete with this data."""
        stamp = timestamp(at_ns)
        *lines, rest = (self._rest + data).split(b"\n")
        parts: list[bytes] = []
        for line in lines:
            last = line
            while len(last) > LONGEST_LINE:
                parts += (stamp, self._tags["P"], last[:LONGEST_LINE], b"\n")
                last = last[LONGEST_LINE:]
            parts += (stamp, self._tags["F"], last, b"\n")
        while len(rest) >= LONGEST_LINE:
            parts += (stamp, self._tags["P"], rest[:LONGEST_LINE], b"\n")
            rest = rest[LONGEST_LINE:]
        self._rest = rest
        return b"".join(parts)

    def close(self, *, at_ns: int) -> bytes:
        """What is left when the stream ends without a newline: a partial line."""
        rest, self._rest = self._rest, b""
        return b"".join((timestamp(at_ns), self._tags["P"], rest, b"\n")) if rest else b""


def timestamp(at_ns: int) -> bytes:
    """RFC 3339 in UTC with nine digits."""
    seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return b"%04d-%02d-%02dT%02d:%02d:%02d.%09dZ" % (year, month, day, hour, minute, second, nanoseconds)


class Writer:
    """The thread that writes; one for all containers of the pod."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[LogFile, bytes] | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)
        self._thread.start()

    def put(self, file: LogFile, data: bytes) -> None:
        """Have data written; ``file.written`` is told in the event loop."""
        self._queue.put((file, data))

    def end(self, file: LogFile) -> None:
        """Have a file closed when all that was put is written: to close writes, where the home is on NFS."""

        def close() -> None:
            try:
                file.close()
            except OSError as error:
                self._loop.call_soon_threadsafe(file.written, 0, error)

        self._queue.put(close)

    async def flushed(self, *, timeout_seconds: float) -> bool:
        """Whether all that was put before is out within this time."""
        done: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            self._loop.call_soon_threadsafe(_resolve, done)

        self._queue.put(tell)
        try:
            async with asyncio.timeout(timeout_seconds):
                await done
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the thread when it has written all; does not wait for it."""
        self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if callable(item):
                    item()
                    continue
                file, data = item
                error = _written(file, data)
                self._loop.call_soon_threadsafe(file.written, len(data), error)
            except RuntimeError:  # the loop has closed: the agent is leaving
                return


def _written(file: LogFile, data: bytes) -> OSError | None:
    """Write, in the thread, which must outlive whatever is wrong with one file."""
    try:
        return file.write(data)
    except Exception as error:  # noqa: BLE001 - as it says
        file.add_lost(len(data))
        return OSError(errno.EIO, supervise.fault("log writer", error))


class LogFile:
    """One run's log file; opened by the writer's thread when it is first written."""

    def __init__(self, path: str, *, on_trouble: Callable[[str], None], limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
        self._part = 0
        self._size = 0
        self._descriptor = -1
        self._is_torn = False
        self._lost = 0
        self._lock = threading.Lock()  # of _lost: the loop adds to it, the thread takes it
        self._on_trouble = on_trouble
        self._is_troubled = False
        self.waiting = 0
        """Bytes that the thread has not written yet."""
        self.hangs = False
        """Whether output is thrown away because the disk does not answer."""
        self.room = asyncio.Event()
        self.room.set()

    def write(self, data: bytes) -> OSError | None:
        """Append, in the thread; an error loses the data, and the next success says how much was lost."""
        try:
            if self._descriptor < 0:
                self._begin()
            if data:
                self._confess()
                self._write(data)
        except OSError as error:
            self.add_lost(len(data))
            return error
        return None

    def _begin(self) -> None:
        """Open the current part, and remove what is no longer kept: of this run, and of runs before the last one."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        _remove_old(self._path, oldest_part=self._part - self._limits.files + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(jobdir.log_part(self._path, self._part), flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._is_torn = False

    def _write(self, data: bytes) -> None:
        """Append lines; in the next part, where this one would grow too large."""
        if self._size and self._size + len(data) > self._limits.file_bytes:
            self.close()
            self._part += 1
            self._begin()
        view = memoryview(data)
        while view:
            count = os.write(self._descriptor, view)
            self._size += count
            self._is_torn = view[count - 1] != _NEWLINE
            view = view[count:]

    def _confess(self) -> None:
        with self._lock:
            lost = self._lost
        if lost:
            text = b" stderr F [hpk: %d bytes of log were lost here]\n" % lost
            self._write((b"\n" if self._is_torn else b"") + timestamp(time.time_ns()) + text)
            self.add_lost(-lost)

    def add_lost(self, count: int) -> None:
        """Note bytes that never reach the file."""
        with self._lock:
            self._lost += count

    def give_up(self) -> None:
        """In the event loop: the disk has had its time; the container goes on without its output."""
        self.hangs = True
        self._trouble(f"Cannot write {self._path}: the file system does not answer; output is lost until it does")

    def written(self, count: int, error: OSError | None) -> None:
        """In the event loop: the thread is done with count bytes."""
        self.waiting -= count
        if self.waiting < _MOST_WAITING:
            self.hangs = False
            self.room.set()
        if error is None:
            self._is_troubled = self.hangs
        else:
            self._trouble(f"Cannot write {self._path}: {error.strerror}; output is lost until it works again")

    def _trouble(self, why: str) -> None:
        if not self._is_troubled:
            self._is_troubled = True
            self._on_trouble(why)

    def close(self) -> None:
        """Close the file, in the thread.

        Raises:
            OSError: What was written could not be kept.
        """
        descriptor, self._descriptor = self._descriptor, -1  # it is gone, whatever close(2) says
        if descriptor >= 0:
            os.close(descriptor)


def _remove_old(path: str, *, oldest_part: int) -> None:
    """Remove the parts of this log before the oldest that is kept, and the logs of all runs but the last before it.

    The kubelet keeps as much: one dead container of a name (MaxPerPodContainer).
    """
    directory, base = os.path.split(path)
    run = int(base.partition(".")[0])
    for name in os.listdir(directory):
        number, _, rest = name.partition(".")
        part = rest.removeprefix("log").lstrip(".") or "0"
        if not (number.isdecimal() and part.isdecimal()):
            continue
        if int(number) < run - 1 or (int(number) == run and int(part) < oldest_part):
            os.unlink(os.path.join(directory, name))


class Tap:
    """Somebody attached to a run: gets a copy of its output from now on.

    Who does not take what there is holds the container back, as with containerd, but not for ever: after
    :data:`PATIENCE_SECONDS` without any progress the tap ends, and the container goes on.
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
        """Add output; waits while too much is there."""
        if self._has_ended:
            return
        self._items.append((stream, data))
        self._waiting += len(data)
        self._news.set()
        while self._waiting > _MOST_TAPPED and self._is_patient:
            self._room.clear()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._room.wait()
            except TimeoutError:
                self.was_slow = True
                self.end()

    async def take(self) -> tuple[str, bytes] | None:
        """The next output and the name of its stream; None at the end."""
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
        """The run has ended: its last output must reach the log now, whoever is slow."""
        self._is_patient = False
        self._room.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._has_ended = True
        self._news.set()
        self.hurry()


class Capture:
    """Follows the output of one run until all its streams have ended."""

    def __init__(self, outputs: dict[str, int], *, file: LogFile, writer: Writer, keeps_end: bool = False) -> None:
        self.end = b""
        """The last lines, if they are kept: for who cannot wait for the disk."""
        self._keeps_end = keeps_end
        self._file = file
        self._writer = writer
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._open = 0
        self._taps: set[Tap] = set()
        self.follow(outputs)
        writer.put(file, b"")  # an empty log is a log

    def follow(self, outputs: dict[str, int]) -> None:
        """Follow these streams too, unless they are followed already."""
        for name, end in outputs.items():
            if name not in self._tasks:
                self._open += 1
                self._tasks[name] = asyncio.create_task(self._follow(name, end))

    def tap(self) -> Tap:
        """Have a copy of what is written from now on; it ends with the streams."""
        made = Tap()
        self._taps.add(made)
        if not self._open:
            made.end()
        return made

    def untap(self, tap: Tap) -> None:
        """Let go of a copy; whoever waited for it to take more does not wait any more."""
        self._taps.discard(tap)
        tap.end()

    async def finish(self, *, timeout_seconds: float) -> None:
        """Wait until the streams have ended and are written; gives up on a disk that hangs."""
        for tap in self._taps:
            tap.hurry()
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_taps()
        self._writer.end(self._file)
        await self._writer.flushed(timeout_seconds=timeout_seconds)

    def _end_taps(self) -> None:
        for tap in self._taps:
            tap.end()

    async def _follow(self, name: str, descriptor: int) -> None:
        framer = Framer(name)
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
        """Hold the container back while the disk is slow, but not for ever."""
        file = self._file
        if file.hangs or file.waiting < _MOST_WAITING:
            await asyncio.sleep(0)  # others have a turn, however much this one writes
            return
        file.room.clear()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await file.room.wait()
        except TimeoutError:
            file.give_up()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
