"""The program's own log: written outside the event loop, bounded, and never a cause of failure.

A line goes to three places: a file on this node's disk, which has room when the home has none; a bounded copy on the
home; and standard error, which is the job's output on the home and cannot be rotated. Lines that a place refuses wait
in memory, up to a limit, and are written when there is room again.
"""

from __future__ import annotations

import collections
import contextlib
import io
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from hpk.aio import process

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MOST_OUTPUT_BYTES = 4 << 20
"""Limit of standard error; later lines are in the copy only."""
MOST_COPY_BYTES = 4 << 20
"""Limit of each of two files (:class:`hpk.aio.process.Log`)."""
MOST_LINES = 2000
"""Lines that wait for a place that refuses them; the oldest are dropped."""
RETRY_SECONDS = 5.0
FLUSH_SECONDS = 2.0
FULL = b"hpk: this output is full; later lines are in state/logs/hpk.log of the state directory\n"


class LogSink:
    """A destination of lines; keeps those that it could not write."""

    def __init__(self, log: process.Log | None, *, descriptor: int = -1, most_bytes: int = MOST_OUTPUT_BYTES) -> None:
        self._log = log
        self._descriptor = descriptor
        self._left_bytes = most_bytes
        self._waiting: collections.deque[bytes] = collections.deque(maxlen=MOST_LINES)

    def put(self, lines: Iterable[bytes]) -> bool:
        """Write the waiting lines and these; return whether none waits any more. Never raises."""
        self._waiting += lines
        while self._waiting:
            if not self._write(self._waiting[0]):
                return False
            self._waiting.popleft()
        return True

    def _write(self, line: bytes) -> bool:
        if self._log is not None:
            return self._log.write(line)
        if self._left_bytes <= 0:
            return True
        is_last = self._left_bytes <= len(line)
        try:
            os.write(self._descriptor, line + FULL if is_last else line)
        except OSError:
            return False
        self._left_bytes -= len(line)
        return True


class Output(io.TextIOBase):
    """A stream for loggers and ``sys.stderr``; a thread writes it out, and neither write nor flush raises or waits."""

    def __init__(self, places: Iterable[LogSink], *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._places = tuple(places)
        self._retry_seconds = retry_seconds
        self._lines: collections.deque[bytes] = collections.deque(maxlen=MOST_LINES)
        self._rest = ""
        self._news = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Queue the text; an incomplete line waits for its rest."""
        with self._news:
            *lines, self._rest = (self._rest + text).split("\n")
            self._lines += (f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)
            self._news.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def finish(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write the remaining lines, but do not wait for a file system that hangs."""
        if self._rest:
            self.write("\n")
        deadline = time.monotonic() + seconds
        with self._news:
            while (self._lines or self._is_busy) and (left := deadline - time.monotonic()) > 0:
                self._news.wait(left)
            self._is_closed = True
            self._news.notify_all()

    def _run(self) -> None:
        is_done = True
        while True:
            with self._news:
                self._is_busy = False
                self._news.notify_all()
                if not self._lines and not self._is_closed:
                    self._news.wait(None if is_done else self._retry_seconds)
                if self._is_closed and not self._lines:
                    return
                lines = list(self._lines)
                self._lines.clear()
                self._is_busy = True
            done = [place.put(lines) for place in self._places]
            is_done = all(done)


def take_over(*, node: Path, home: Path | None = None) -> Output:
    """Replace ``sys.stdout`` and ``sys.stderr`` by an output with these two files, and return it."""
    files = [node]
    if home is not None:
        with contextlib.suppress(OSError):
            home.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.append(home)
    places = [LogSink(process.Log(file, most_bytes=MOST_COPY_BYTES)) for file in files]
    made = Output([*places, LogSink(None, descriptor=2)])
    sys.stdout = sys.stderr = made
    return made
