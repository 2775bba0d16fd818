"""What is known of one pod at one moment, and since when: the only source of `life.Observation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hpk.kube import v1
from hpk.pods import allocations, life, status

if TYPE_CHECKING:
    from datetime import datetime

    from hpk.pods import services, tenancy


class PodObject(NamedTuple):
    """The API server's copy of a pod, as it came and decoded."""

    raw: dict[str, Any]
    pod: v1.Pod


class Observer:
    """Reads what no event announces, and remembers when each fact was first seen.

    Methods take the pod's object, or None if it was removed.

    Attributes:
        started_at: When the pod's life on this node began, from which its deadline counts; None before its first round.
    """

    def __init__(self, uid: str, used: services.Services, stay: tenancy.Tenancy) -> None:
        self._uid, self._s, self._tenancy = uid, used, stay
        self.started_at: datetime | None = None
        self._followed: allocations.Allocation | None = None
        self._has_started = False
        self._off_line_since = self._now()
        self._finished_at: float | None = None
        self._ended_at: float | None = None
        self._closed_at: float | None = None

    def _now(self) -> float:
        return self._s.clock.monotonic()

    def find(self) -> PodObject | None:
        """Return the pod's object from the informer."""
        raw = self._s.find(self._uid)
        return None if raw is None else PodObject(raw, v1.pod(raw))

    def is_closed(self, found: PodObject | None) -> bool:
        """Return whether the pod's phase is terminal, by our own last write or the API server's copy."""
        return found is not None and status.is_terminal(self._s.reporter.current(found.raw))

    async def look(self, found: PodObject | None) -> None:
        """Read what the stream did not bring: the report's file, and what Slurm and the output tell of a job's end.

        Raises:
            errors.Retryable: The file system does not say who runs the pod, or Slurm is away.
        """
        if found is None and self._s.agents.newest(self._uid) is None:
            await self._s.agents.read(self._uid)
        if found is None or self._tenancy.allocation is None or self._is_finished():
            return  # nobody asks how a pod without an object ended
        if self._tenancy.doubt():
            self._ended_at = None
        if not self._s.agents.is_connected(self._uid) or self._tenancy.is_released:
            await self._s.agents.read(self._uid)
        await self._tenancy.follow_the_claimant(self._s.agents.newest(self._uid))
        if self._is_finished():
            return
        if told := await self._tenancy.learn(found.pod, self._s.agents.newest(self._uid)):
            await self._s.agents.took_report(self._uid, told)
        self._follow()
        if self._ended_at is None and self._tenancy.is_released:
            # Only now: the questions may take long, and the agent's last report has its time after them.
            self._ended_at = self._now()

    def _is_finished(self) -> bool:
        newest = self._s.agents.newest(self._uid)
        return bool(newest and newest["finished_at"])

    def observe(self, found: PodObject | None, failure: life.Failure | None) -> life.Observation:
        """Return what is known now; nothing in it waits, so that all of it is of one moment."""
        now, newest = self._now(), self._s.agents.newest(self._uid)
        is_connected, is_closed = self._s.agents.is_connected(self._uid), self.is_closed(found)
        state = self._tenancy.state
        self._mark(now, state, is_connected=is_connected, is_closed=is_closed)
        meta = found.raw["metadata"] if found else {}
        return life.Observation(
            has_object=found is not None,
            is_closed=is_closed,
            is_written=found is not None and status.is_terminal(found.raw),
            is_deleted=bool(meta.get("deletionTimestamp")),
            is_removable=not (meta.get("finalizers") and meta.get("deletionGracePeriodSeconds") == 0),
            grace_seconds=grace(found.pod) if found else 0.0,
            deadline_left=deadline_left(found.pod, self.started_at, now=self._s.clock.time()) if found else None,
            failure=failure,
            has_looked=self._tenancy.has_looked,
            allocation=state,
            is_explained=self._tenancy.words is not None,
            has_started=self._has_started,
            report=newest,
            is_connected=is_connected,
            has_dialled=bool(self._s.agents.dials(self._uid)),
            report_age=self._s.clock.time() - newest["started_at"] if newest else None,
            off_line_for=now - self._off_line_since,
            finished_for=_between(self._finished_at, now),
            ended_for=_between(self._ended_at, now),
            closed_for=_between(self._closed_at, now),
        )

    def released(self) -> None:
        """Count anew from now how long a closed pod's job takes to end: it was cancelled just now."""
        self._closed_at = self._now()

    def _mark(
        self, now: float, state: allocations.AllocationState | None, *, is_connected: bool, is_closed: bool
    ) -> None:
        """Remember when each fact was first seen, and when the agent was last connected."""
        self._follow()
        if is_connected:
            self._off_line_since = now
        if is_connected or (state is not None and state.phase is allocations.Phase.STARTED):
            self._has_started = True
        if self._finished_at is None and self._is_finished():
            self._finished_at = now
        if self._closed_at is None and is_closed:
            self._closed_at = now

    def _follow(self) -> None:
        """Start over if the pod has another allocation."""
        if self._followed != self._tenancy.allocation:
            self._followed = self._tenancy.allocation
            self._has_started = self._has_started or self._tenancy.is_adopted  # it may have
            self._ended_at, self._off_line_since = None, self._now()


def _between(since: float | None, now: float) -> float | None:
    return None if since is None else now - since


def deadline_left(pod: v1.Pod, started_at: datetime | None, *, now: float) -> float | None:
    """Return the seconds until activeDeadlineSeconds are over, 0 if they are; None without a deadline or a start."""
    seconds = pod.spec.active_deadline_seconds
    if seconds is None or started_at is None:
        return None
    return max(0.0, started_at.timestamp() + seconds - now)


def grace(pod: v1.Pod) -> float:
    """Return the seconds in which the pod's containers must end."""
    asked = pod.metadata.deletion_grace_period_seconds
    return float(pod.spec.termination_grace_period_seconds if asked is None else asked)
