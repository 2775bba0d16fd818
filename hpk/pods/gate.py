"""A circuit breaker for sbatch, so that trouble shared by many pods does not become a storm of calls.

A lane is open or closed like a gate: an open lane lets pods through, and a circuit breaker in that state is called
closed. A breaker's half-open state is a lane whose pause is over, which lets one pod try.

A pod passes lanes: one for its controller's pods with the same flags and request, where a permanent refusal of one
counts for all; one for how those pods fare, where several that fail at once count; one for all pods under the same
limits.

::

    open ──trouble──► closed for a growing pause ──over──► one pod tries ──taken──► open
                             ▲                                   │
                             └───────────── trouble ─────────────┘

Pods of a closed lane stay Pending, in order of arrival. As many are woken as can proceed: the first when the pause is
over, one for each job that ends where a limit holds them, and after a limit has passed one, then two, then four. A lane
that is new or had recent trouble admits one sbatch at a time, so that of fifty pods only one meets the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpk import errors
from hpk.aio import backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from hpk.pods.lanes import Key

AT_ONCE_SECONDS = 60.0
"""A pod that fails within this time has failed at once."""
PROBE_SECONDS = 120.0
"""How long until another pod may try, if the first has not reached sbatch."""
CAREFUL_SECONDS = 60.0
"""How long after trouble a lane admits one sbatch at a time."""
FORGET_SECONDS = 600.0
"""How long pods must do well before the next failure at once counts as the first."""
MOST_LANES = 1000
MOST_WAKES = 64
"""How many pods one success wakes at most."""
RATE_LIMIT_FACTOR = 4
PAUSES = {
    "refused": backoff.BackoffPolicy(first_seconds=10.0, cap_seconds=300.0),
    "failed": backoff.BackoffPolicy(first_seconds=10.0, cap_seconds=300.0),
    "limits": backoff.BackoffPolicy(first_seconds=2.0, cap_seconds=60.0),
}
"""How long a lane is closed, by its kind."""


class LaneClosed(errors.Retryable):
    """The pod is held by another pod's trouble; the text describes it, ``seconds`` says when to try again."""

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(eq=False, kw_only=True)
class _Lane:
    kind: str
    failures: int = 0
    opened_at: float | None = None
    closed_until: float = 0.0
    careful_until: float = float("inf")
    text: str = ""
    prober: str | None = None
    probes_until: float = 0.0
    held: OrderedDict[str, None] = field(default_factory=OrderedDict)
    called: set[str] = field(default_factory=set)
    """Pods for each of which a place is free while the lane stays closed to others."""
    next_wakes: int = 1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gate:
    """The lanes of all pods.

    Attributes:
        on_open: Called with the UID of a held pod that may try again or is now first in line.
    """

    def __init__(
        self,
        *,
        on_open: Callable[[str], None],
        pauses: Mapping[str, backoff.BackoffPolicy] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_open = on_open
        self._pauses, self._clock = {**PAUSES, **(pauses or {})}, clock
        self._lanes: dict[Key, _Lane] = {}

    def check(self, uid: str, wanted: Sequence[Key]) -> None:
        """Let the pod proceed; where a lane's pause is over, it is the one that tries.

        Raises:
            LaneClosed: Not now.
        """
        now = self._clock()
        closed = [lane for key in wanted if (lane := self._lanes.get(key)) and self._is_closed(lane, now)]
        closed = [lane for lane in closed if uid not in lane.called]
        for lane in closed:
            until = lane.closed_until
            if until <= now and lane.prober not in (None, uid):
                until = lane.probes_until
            if until > now:
                lane.held.setdefault(uid)
                is_first = next(iter(lane.held)) == uid
                # Pods further back are woken when they can proceed; they look again in case nobody is left to do that.
                raise LaneClosed(lane.text, seconds=until - now + (0.0 if is_first else PROBE_SECONDS))
        for lane in closed:
            lane.held.pop(uid, None)
            if lane.prober != uid:
                seconds = AT_ONCE_SECONDS if lane.kind == "failed" else PROBE_SECONDS
                lane.prober, lane.probes_until = uid, now + seconds

    def _is_closed(self, lane: _Lane, now: float) -> bool:
        if lane.kind == "failed" and lane.prober is not None and lane.probes_until <= now and lane.opened_at is None:
            lane.opened_at = now  # the one that went ahead lives: the others may proceed
            self._wake(lane, len(lane.held))
        return bool(lane.failures) and lane.opened_at is None

    def denial(self, wanted: Sequence[Key]) -> str | None:
        """Return sbatch's recent refusal of the controller's other pods, while that lane is closed."""
        now = self._clock()
        for key in wanted:
            lane = self._lanes.get(key)
            if lane is not None and lane.kind == "refused" and lane.failures and lane.closed_until > now:
                return lane.text
        return None

    @contextlib.asynccontextmanager
    async def turn(self, uid: str, wanted: Sequence[Key]) -> AsyncIterator[None]:
        """Guard the pod's sbatch call; its result opens or closes the lanes.

        Raises:
            LaneClosed: Another pod met trouble while this one waited.
        """
        async with contextlib.AsyncExitStack() as stack:
            for key in wanted:
                await self._enter(self._lane(key), stack)
            self.check(uid, wanted)
            try:
                yield
            except errors.JobRefused as error:
                self._close(wanted, "refused", str(error))
                raise
            except errors.SlurmUnavailable as error:
                self._close(wanted, "limits", str(error), count=RATE_LIMIT_FACTOR if error.limits_rate else 1)
                raise
            self._open(uid, wanted)

    def leave(self, uid: str, wanted: Sequence[Key]) -> None:
        """Let another pod try in place of this one, which has stopped trying for now."""
        for key in wanted:
            if (lane := self._lanes.get(key)) is not None:
                self._pass_on(uid, lane)

    def forget(self, uid: str) -> None:
        """Drop a pod that is done; a place kept for it goes to another."""
        for lane in self._lanes.values():
            was_first = next(iter(lane.held), None) == uid
            lane.held.pop(uid, None)
            self._pass_on(uid, lane)
            if was_first and lane.failures:
                self._call_first(lane)

    def _pass_on(self, uid: str, lane: _Lane) -> None:
        if lane.prober == uid and lane.kind != "failed":
            lane.prober = None
            if lane.closed_until <= self._clock():
                self._call_first(lane)
        if uid in lane.called:
            lane.called.discard(uid)
            self._give_place(lane)

    def failed_at_once(self, wanted: Sequence[Key], text: str) -> None:
        """Record that a pod ran and failed at once; of several at the same time the first counts."""
        for key in wanted:
            lane = self._lane(key)
            if lane.kind != "failed" or lane.closed_until > self._clock():
                continue
            if lane.opened_at is not None and self._clock() - lane.opened_at > FORGET_SECONDS:
                lane.failures = 0
            self._close([key], "failed", text)

    def job_ended(self) -> None:
        """Let one pod try wherever a limit holds some, because a job has ended."""
        for lane in self._lanes.values():
            if lane.kind == "limits" and lane.failures:
                self._give_place(lane)

    def _give_place(self, lane: _Lane) -> None:
        if uid := next(iter(lane.held), None):
            del lane.held[uid]
            lane.called.add(uid)
            self.on_open(uid)

    def _lane(self, key: Key) -> _Lane:
        if key not in self._lanes:
            if len(self._lanes) >= MOST_LANES:
                idle = [k for k, lane in self._lanes.items() if not (lane.held or lane.called or lane.lock.locked())]
                for old in idle[: MOST_LANES // 2]:
                    del self._lanes[old]
            self._lanes[key] = _Lane(kind=key[0])
        return self._lanes[key]

    async def _enter(self, lane: _Lane, stack: contextlib.AsyncExitStack) -> None:
        if lane.careful_until <= self._clock():
            return
        await lane.lock.acquire()
        if lane.careful_until > self._clock():
            stack.callback(lane.lock.release)
        else:  # the pod before this one has shown that all is well
            lane.lock.release()

    def _close(self, wanted: Sequence[Key], kind: str, text: str, *, count: int = 1) -> None:
        now = self._clock()
        for lane in (self._lane(key) for key in wanted if key[0] == kind):
            lane.failures += count
            pause = self._pauses[kind].pause(lane.failures)
            was_tried = lane.prober is not None
            lane.closed_until, lane.careful_until = now + pause, now + pause + CAREFUL_SECONDS
            lane.text, lane.prober, lane.opened_at = text, None, None
            lane.next_wakes = 1
            lane.called.clear()
            if was_tried:  # else the next one would wait for as long as this one might have taken
                self._call_first(lane)

    def _open(self, uid: str, wanted: Sequence[Key]) -> None:
        now = self._clock()
        for lane in (self._lane(key) for key in wanted):
            if lane.careful_until == float("inf"):
                lane.careful_until = now
            if lane.kind == "failed":
                continue  # its success is not known yet
            if uid in lane.called:
                lane.called.discard(uid)
                continue  # the free place is taken; nothing changes for the others
            lane.failures, lane.closed_until, lane.prober = 0, 0.0, None
            count = len(lane.held) if lane.kind == "refused" else lane.next_wakes
            lane.next_wakes = min(2 * lane.next_wakes, MOST_WAKES)
            self._wake(lane, count)

    def _wake(self, lane: _Lane, count: int) -> None:
        """Let this many held pods look again; those that must still wait are held anew."""
        for uid in list(lane.held)[:count]:
            lane.held.pop(uid, None)
            self.on_open(uid)

    def _call_first(self, lane: _Lane) -> None:
        """Let the first in line look when it can proceed; it keeps its place."""
        if lane.held:
            self.on_open(next(iter(lane.held)))
