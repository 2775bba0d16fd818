"""Containers' output as CRI log files (`hpk.crilog`).

One thread of the pod writes them, so that a slow shared file system delays nothing else. If the disk refuses (full,
gone) or hangs, lines are lost; an event and a line in the file tell how much.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import threading
import time
from typing import TYPE_CHECKING

from hpk import aiotasks, crilog, jobdir
from hpk.agent.life import descriptors, supervise

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_LINE = 16 * 1024
"""Bytes; a longer line is split, as by containerd."""
_NEWLINE = 10
_MOST_WAITING = 4 << 20


class Limits:
    """Limits on the log of one run: size and number of its files (containerLogMaxSize, containerLogMaxFiles)."""

    def __init__(self, file_bytes: int = 10 << 20, files: int = 5) -> None:
        self.file_bytes, self.files = file_bytes, files


class Framer:
    """Turns the bytes of one stream into CRI lines; pure."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._rest = b""

    def feed(self, data: bytes, *, at_ns: int) -> bytes:
        """Return the lines that are complete with this data."""
        stamp = crilog.timestamp(at_ns)
        full, partial = (crilog.head(stamp, self._stream, tag) for tag in (crilog.FULL, crilog.PARTIAL))
        *lines, rest = (self._rest + data).split(b"\n")
        parts: list[bytes] = []
        for line in lines:
            last = line
            while len(last) > LONGEST_LINE:
                parts += (partial, last[:LONGEST_LINE], b"\n")
                last = last[LONGEST_LINE:]
            parts += (full, last, b"\n")
        while len(rest) >= LONGEST_LINE:
            parts += (partial, rest[:LONGEST_LINE], b"\n")
            rest = rest[LONGEST_LINE:]
        self._rest = rest
        return b"".join(parts)

    def close(self, *, at_ns: int) -> bytes:
        """Return the rest of a stream that ends without a newline, as a partial line."""
        rest, self._rest = self._rest, b""
        return crilog.head(crilog.timestamp(at_ns), self._stream, crilog.PARTIAL) + rest + b"\n" if rest else b""


class Writer:
    """The thread that writes the logs of all containers of the pod."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[LogFile, bytes] | Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="logs", daemon=True)
        self._thread.start()

    def put(self, file: LogFile, data: bytes) -> None:
        """Queue data to be written; ``file.written`` is then called in the event loop."""
        self._queue.put((file, data))

    def end(self, file: LogFile) -> None:
        """Close the file when all queued data is written; on NFS, close(2) writes."""

        def close() -> None:
            try:
                file.close()
            except OSError as error:
                self._loop.call_soon_threadsafe(file.written, 0, error)

        self._queue.put(close)

    async def flushed(self, *, timeout_seconds: float) -> bool:
        """Return whether everything queued so far is written within this time."""
        done: asyncio.Future[None] = self._loop.create_future()

        def tell() -> None:
            self._loop.call_soon_threadsafe(descriptors.resolve, done)

        self._queue.put(tell)
        return await aiotasks.in_time(done, timeout_seconds)

    def close(self) -> None:
        """End the thread when it has written everything; do not wait for it."""
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
    """Write, in the thread, which must survive any fault of one file."""
    try:
        return file.write(data)
    except Exception as error:  # noqa: BLE001 - as it says
        file.add_lost(len(data))
        return OSError(errno.EIO, supervise.fault("log writer", error))


class LogFile:
    """The log file of one run; the writer's thread opens it on the first write."""

    def __init__(self, path: str, *, on_trouble: Callable[[str], None], limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
        self._part = 0
        self._size = 0
        self._descriptor = -1
        self._is_torn = False
        self._lost = 0
        self._lock = threading.Lock()  # guards _lost, which loop and thread change
        self._on_trouble = on_trouble
        self._is_troubled = False
        self.waiting = 0
        """Bytes that the thread has yet to write."""
        self.hangs = False
        """Whether output is dropped because the disk does not answer."""
        self.room = asyncio.Event()
        self.room.set()

    def write(self, data: bytes) -> OSError | None:
        """Append data, in the thread; an error loses it, and the next success records how much was lost."""
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
        """Open the current part; remove this run's parts beyond the limit, and the logs of runs before the last."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        _remove_old(self._path, oldest_part=self._part - self._limits.files + 1)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(jobdir.log_part(self._path, self._part), flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._is_torn = False

    def _write(self, data: bytes) -> None:
        """Append lines, in a new part if this one would grow too large."""
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
            text = b"[hpk: %d bytes of log were lost here]\n" % lost
            head = crilog.head(crilog.timestamp(time.time_ns()), "stderr")
            self._write((b"\n" if self._is_torn else b"") + head + text)
            self.add_lost(-lost)

    @property
    def has_room(self) -> bool:
        """Whether the thread keeps up."""
        return self.waiting < _MOST_WAITING

    def add_lost(self, count: int) -> None:
        """Count bytes that never reach the file."""
        with self._lock:
            self._lost += count

    def give_up(self) -> None:
        """Drop output until the disk answers, so that the container can continue; called in the event loop."""
        self.hangs = True
        self._trouble(f"Cannot write {self._path}: the file system does not answer; output is lost until it does")

    def written(self, count: int, error: OSError | None) -> None:
        """Note that the thread is done with ``count`` bytes; called in the event loop."""
        self.waiting -= count
        if self.has_room:
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
            OSError: Data that was written could not be kept.
        """
        descriptor, self._descriptor = self._descriptor, -1  # it is closed even if close(2) fails
        if descriptor >= 0:
            os.close(descriptor)


def _remove_old(path: str, *, oldest_part: int) -> None:
    """Remove the parts of this log before ``oldest_part``, and the logs of runs before the last one.

    The kubelet keeps as many: one dead container of a name (MaxPerPodContainer).
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
