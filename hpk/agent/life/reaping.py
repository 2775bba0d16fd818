"""Collects every child process that ends, adopted ones included, and tells whoever waits for it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class Reaper:
    """Collects children; made inside the event loop, before anything awaits a child.

    A container's process becomes ours only when crun, its parent, ends, and may end before anybody has read its id. So
    statuses without a waiter are kept, with their time, because a process id may be used again.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._unclaimed: dict[int, tuple[int, float]] = {}

    def reap(self) -> None:
        """Collect all children that have ended; call it on SIGCHLD and once at the start."""
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            future = self._waiting.pop(process, None)
            if future is None:
                self._unclaimed[process] = (status, time.monotonic())
            elif not future.done():
                future.set_result(status)

    def wait(self, process: int, *, since: float) -> asyncio.Future[int]:
        """Return a future of the raw status of a process that was started after monotonic time ``since``."""
        future: asyncio.Future[int] = self._loop.create_future()
        status, at = self._unclaimed.pop(process, (0, -1.0))
        if at >= since:
            future.set_result(status)
        else:
            self._waiting[process] = future
        return future

    def is_running(self, process: int) -> bool:
        """Return whether the process has yet to be reaped, so that its id cannot mean another one."""
        return process in self._waiting

    def forget(self) -> None:
        """Drop statuses that nobody asked for: those of daemons, and of the containers' orphans."""
        old = time.monotonic() - 60
        self._unclaimed = {process: value for process, value in self._unclaimed.items() if value[1] > old}
