"""Who may submit now, so that no trouble of many pods becomes a storm of sbatch.

A pod passes lanes: one of its controller's pods that ask for the same, where a lasting refusal of one speaks for
all; one of how those fare, where some that fail at once do; one of all pods that count against the same limits.

::

    open ──trouble──► closed for a growing pause ──over──► one pod tries ──taken──► open
                             ▲                                   │
                             └───────────── trouble ─────────────┘

Nothing is lost in a closed lane: its pods stay Pending, in the order in which they came.  As many are woken as can
go: the first when the pause is over, one for each job that ends where a limit holds them, and when a limit has passed
one, then two, then four.  A lane that is new or had trouble lately takes one sbatch at a time, so that of fifty pods
only one learns of it.
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
"""A pod that fails within this time has failed at once; one that lived longer has not."""
PROBE_SECONDS = 120.0
"""After which another pod may try, if the one that went ahead has not come to sbatch."""
CAREFUL_SECONDS = 60.0
"""How long after trouble a lane takes one sbatch at a time."""
FORGET_SECONDS = 600.0
"""How long pods must have fared well before the next that fails at once counts as the first."""
MOST_LANES = 1000
MOST_WAKES = 64
"""Woken by one success, at most."""
RATE_LIMIT_FACTOR = 4


PAUSES = {
    "refused": backoff.Policy(first_seconds=10.0, cap_seconds=300.0),
    "failed": backoff.Policy(first_seconds=10.0, cap_seconds=300.0),
    "limits": backoff.Policy(first_seconds=2.0, cap_seconds=60.0),
}
"""How long a lane is closed, by its kind."""


class Held(errors.Retryable):
    """Another pod's trouble holds this one; the text is that trouble's, ``seconds`` when to look again."""

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
    """Those for each of whom a place has become free, while the lane stays closed to the others."""
    next_wakes: int = 1
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Gate:
    """All lanes.

    Attributes:
        on_open: Called with the UID of a pod that was held, when it may try again or has become the first in line.
    """

    def __init__(
        self,
        *,
        on_open: Callable[[str], None],
        pauses: Mapping[str, backoff.Policy] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_open = on_open
        self._pauses, self._clock = {**PAUSES, **(pauses or {})}, clock
        self._lanes: dict[Key, _Lane] = {}

    def check(self, uid: str, wanted: Sequence[Key]) -> None:
        """Let the pod go on, as the one that tries where a lane's pause is over.

        Raises:
            Held: Not now.
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
                # Who is behind is woken when it can go; to look again is only for the case that nobody is left to wake.
                raise Held(lane.text, seconds=until - now + (0.0 if is_first else PROBE_SECONDS))
        for lane in closed:
            lane.held.pop(uid, None)
            if lane.prober != uid:
                seconds = AT_ONCE_SECONDS if lane.kind == "failed" else PROBE_SECONDS
                lane.prober, lane.probes_until = uid, now + seconds

    def _is_closed(self, lane: _Lane, now: float) -> bool:
        if lane.kind == "failed" and lane.prober is not None and lane.probes_until <= now and lane.opened_at is None:
            lane.opened_at = now  # the one that went ahead lives: the others may go
            self._wake(lane, len(lane.held))
        return bool(lane.failures) and lane.opened_at is None

    def denial(self, wanted: Sequence[Key]) -> str | None:
        """What sbatch lately said to the controller's other pods, while that lane is closed."""
        now = self._clock()
        for key in wanted:
            lane = self._lanes.get(key)
            if lane is not None and lane.kind == "refused" and lane.failures and lane.closed_until > now:
                return lane.text
        return None

    @contextlib.asynccontextmanager
    async def turn(self, uid: str, wanted: Sequence[Key]) -> AsyncIterator[None]:
        """The block is the pod's sbatch; what comes of it opens or closes the lanes.

        Raises:
            Held: Not now: another pod met trouble while this one waited.
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
        """The pod tries no more for now: where it went ahead, let another."""
        for key in wanted:
            if (lane := self._lanes.get(key)) is not None:
                self._pass_on(uid, lane)

    def forget(self, uid: str) -> None:
        """The pod is done with: it is held no more, and what it was called for is another's."""
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
        """A pod ran, and failed at once; of several that did so together the first counts."""
        for key in wanted:
            lane = self._lane(key)
            if lane.kind != "failed" or lane.closed_until > self._clock():
                continue
            if lane.opened_at is not None and self._clock() - lane.opened_at > FORGET_SECONDS:
                lane.failures = 0
            self._close([key], "failed", text)

    def job_ended(self) -> None:
        """A job has ended: where a limit holds pods, one may try now."""
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
        else:  # the one before us has shown that all is well
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
            if was_tried:  # the next one would wait for as long as it might have taken
                self._call_first(lane)

    def _open(self, uid: str, wanted: Sequence[Key]) -> None:
        now = self._clock()
        for lane in (self._lane(key) for key in wanted):
            if lane.careful_until == float("inf"):
                lane.careful_until = now
            if lane.kind == "failed":
                continue  # how it fares is not known yet
            if uid in lane.called:
                lane.called.discard(uid)
                continue  # the place was free, and is taken: for the others nothing has changed
            lane.failures, lane.closed_until, lane.prober = 0, 0.0, None
            count = len(lane.held) if lane.kind == "refused" else lane.next_wakes
            lane.next_wakes = min(2 * lane.next_wakes, MOST_WAKES)
            self._wake(lane, count)

    def _wake(self, lane: _Lane, count: int) -> None:
        """Have so many of those that are held look again; who must still wait is held anew."""
        for uid in list(lane.held)[:count]:
            lane.held.pop(uid, None)
            self.on_open(uid)

    def _call_first(self, lane: _Lane) -> None:
        """Have the first in line look when it can go; it keeps its place."""
        if lane.held:
            self.on_open(next(iter(lane.held)))
