"""What is known of one pod at one moment, and since when: the only source of `life.Observation`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpk.pods import allocations, life, status

if TYPE_CHECKING:
    from datetime import datetime

    from hpk.kube import v1
    from hpk.pods import services, tenancy


class Observer:
    """Looks where no event leads to, and remembers when it first saw what matters.

    Attributes:
        started_at: When the pod's life on this node began, which its deadline counts from; None before its first round.
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

    async def look(self, pod: v1.Pod | None) -> None:
        """Read what the stream did not bring: the report's file, and a silent job's last words.

        The pod is None if its object is gone: how it ended is nobody's question then.

        Raises:
            errors.Retryable: The file system does not say who runs the pod, or Slurm is away.
        """
        if pod is None and self._s.agents.newest(self._uid) is None:
            await self._s.agents.read(self._uid)
        if pod is None or self._tenancy.allocation is None or self._is_finished():
            return
        if self._tenancy.doubt():
            self._ended_at = None
        if not self._s.agents.is_connected(self._uid) or self._tenancy.is_released:
            await self._s.agents.read(self._uid)
        await self._tenancy.follow_the_claimant(self._s.agents.newest(self._uid))
        if self._is_finished():
            return
        if told := await self._tenancy.learn(pod, self._s.agents.newest(self._uid)):
            await self._s.agents.took_report(self._uid, told)
        self._follow()
        if self._ended_at is None and self._tenancy.is_released:
            self._ended_at = self._now()  # after the questions, which may take long: the agent's last word has its time

    def _is_finished(self) -> bool:
        newest = self._s.agents.newest(self._uid)
        return bool(newest and newest["finished_at"])

    def observe(self, raw: dict[str, Any] | None, pod: v1.Pod | None, failure: life.Failure | None) -> life.Observation:
        """Return what is known now; nothing in it waits, so that all of it is of one moment.

        The pod, raw and typed, is None if its object is gone.
        """
        now, newest = self._now(), self._s.agents.newest(self._uid)
        is_connected = self._s.agents.is_connected(self._uid)
        state = self._tenancy.state
        self._mark(now, state, is_connected=is_connected)
        phase = self._s.reporter.current(raw).get("status", {}).get("phase") if raw else None
        is_closed = phase in status.TERMINAL
        if is_closed and self._closed_at is None:
            self._closed_at = now
        common: dict[str, Any] = {
            "failure": failure,
            "has_looked": self._tenancy.has_looked,
            "allocation": state,
            "is_explained": self._tenancy.words is not None,
            "has_started": self._has_started,
            "report": newest,
            "is_connected": is_connected,
            "has_dialled": bool(self._s.agents.dials(self._uid)),
            "report_age": self._s.clock.time() - newest["started_at"] if newest else None,
            "off_line_for": now - self._off_line_since,
            "finished_for": None if self._finished_at is None else now - self._finished_at,
            "ended_for": None if self._ended_at is None else now - self._ended_at,
            "closed_for": None if self._closed_at is None else now - self._closed_at,
        }
        if raw is None or pod is None:
            return life.Observation(has_object=False, **common)
        is_held = raw["metadata"].get("finalizers") and raw["metadata"].get("deletionGracePeriodSeconds") == 0
        return life.Observation(
            is_closed=is_closed,
            is_written=raw.get("status", {}).get("phase") in status.TERMINAL,
            is_deleted=pod.metadata.deletion_timestamp is not None,
            is_removable=not is_held,
            grace_seconds=grace(pod),
            deadline_left=self._deadline_left(pod),
            **common,
        )

    def released(self) -> None:
        """Count anew from now how long a closed pod's job takes to end: it was cancelled just now."""
        self._closed_at = self._now()

    def _mark(self, now: float, state: allocations.AllocationState | None, *, is_connected: bool) -> None:
        """Remember what is seen for the first time, or is so again."""
        self._follow()
        if is_connected:
            self._off_line_since = now
        if is_connected or (state is not None and state.phase is allocations.Phase.STARTED):
            self._has_started = True
        if self._finished_at is None and self._is_finished():
            self._finished_at = now

    def _follow(self) -> None:
        """Begin anew with another allocation."""
        if self._followed != self._tenancy.allocation:
            self._followed = self._tenancy.allocation
            self._has_started = self._has_started or self._tenancy.is_adopted  # for all we know
            self._ended_at, self._off_line_since = None, self._now()

    def _deadline_left(self, pod: v1.Pod) -> float | None:
        if self.started_at is None:
            return None
        return deadline_left(pod, self.started_at, now=self._s.clock.time())


def deadline_left(pod: v1.Pod, started_at: datetime, *, now: float) -> float | None:
    """Return the seconds until activeDeadlineSeconds are over, 0 if they are; None if the pod has none."""
    seconds = pod.spec.active_deadline_seconds
    if seconds is None:
        return None
    return max(0.0, started_at.timestamp() + seconds - now)


def grace(pod: v1.Pod) -> float:
    """Return the seconds that the pod's containers have to end in."""
    asked = pod.metadata.deletion_grace_period_seconds
    return float(pod.spec.termination_grace_period_seconds if asked is None else asked)
