"""A work queue of pod UIDs: a set, so that many changes make one round, and the newest state counts.

Like the kubelet's work queue: at most one worker handles a UID at a time, a change meanwhile makes another round, and a
round may ask for a later one.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import structlog

from hpk import aiotasks
from hpk.aio import backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOG = structlog.get_logger(__name__)
JITTER = 0.1
RETRIES = backoff.BackoffPolicy(first_seconds=0.5, cap_seconds=30.0)


class Queue:
    """A queue that runs ``round(uid)`` for each marked UID, one at a time per UID, all UIDs concurrently.

    A round returns the seconds until its next call (with jitter), or None. A round that raises is logged, reported to
    ``on_failure`` and retried with growing pauses and without end: no pod stops the others.
    """

    def __init__(
        self,
        work: Callable[[str], Awaitable[float | None]],
        *,
        on_failure: Callable[[str, Exception], None],
    ) -> None:
        self._work, self._on_failure = work, on_failure
        self._dirty: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._failures: dict[str, int] = {}
        self._is_open = False

    def mark(self, uid: str) -> None:
        """Ask for a round soon; calls before it begins are merged."""
        self._dirty.add(uid)
        if self._is_open and uid not in self._tasks:
            self._start(uid)

    def forget(self, uid: str) -> None:
        """Drop the timer and the failure count of a UID that is done."""
        self._failures.pop(uid, None)
        if timer := self._timers.pop(uid, None):
            timer.cancel()

    async def run(self) -> None:
        """Work until cancelled, then cancel the rounds in progress."""
        self._is_open = True
        for uid in list(self._dirty):
            self._start(uid)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._is_open = False
            for timer in self._timers.values():
                timer.cancel()
            await aiotasks.cancel(*self._tasks.values())

    def _start(self, uid: str) -> None:
        self._tasks[uid] = asyncio.get_running_loop().create_task(self._rounds(uid), name=f"pod {uid}")

    async def _rounds(self, uid: str) -> None:
        try:
            while uid in self._dirty:
                self._dirty.discard(uid)
                if timer := self._timers.pop(uid, None):
                    timer.cancel()
                self._later(uid, await self._guarded(uid))
        finally:
            del self._tasks[uid]
        if uid in self._dirty and self._is_open:
            self._start(uid)

    async def _guarded(self, uid: str) -> float | None:
        try:
            seconds: float | None = await self._work(uid)
        except Exception as error:  # a pod's error must not affect others
            failures = self._failures[uid] = self._failures.get(uid, 0) + 1
            seconds = RETRIES.pause(failures)
            LOG.warning("Cannot finish a round, will try again", uid=uid, error=repr(error), exc_info=error)
            self._on_failure(uid, error)
            return seconds
        self._failures.pop(uid, None)
        return seconds

    def _later(self, uid: str, seconds: float | None) -> None:
        if seconds is None:
            return
        delay = seconds * (1 + JITTER * random.random())  # noqa: S311 - spreads load, keeps no secret
        self._timers[uid] = asyncio.get_running_loop().call_later(delay, self.mark, uid)
