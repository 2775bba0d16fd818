"""One batched squeue for all pods, because hundreds of users share slurmctld.

After an answer that changes a watched job, the next query follows in ``poll_seconds``. Without changes the pause
doubles, up to a minute if all jobs run (their agents report) and half a minute if one waits. A squeue makes two
slurmctld calls, so that is at most one call in 15 s, however many jobs there are. A caller with a reason (a silent
agent, a cancelled job) can ask for an earlier query; such requests are merged, and queries are a second apart. Silence
proves nothing: a job is gone only if squeue *answered* a query that began after the job's watch, and did not list it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from hpk import errors
from hpk.aio import backoff
from hpk.slurm import model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MIN_SPACING_SECONDS = 1.0
QUEUED_REST_SECONDS = 30.0
"""The longest pause while a watched job is not seen running: only Slurm knows about it."""
REST_SECONDS = 60.0
"""The longest pause while all watched jobs run."""
RATE_LIMIT_FACTOR = 4
"""A rate limit counts as this many failures at once."""

log = structlog.get_logger(__name__)


class JobSource(Protocol):
    """The poller's source of jobs, normally :class:`hpk.slurm.client.Slurm`."""

    async def jobs(self) -> dict[str, model.Job]:
        """Return all jobs of this user.

        Raises:
            errors.SlurmUnavailable: No answer.
        """


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """An answer of squeue.

    Attributes:
        asked_at: When the query began, on the poller's monotonic clock.
        answered_at: When the answer came, in Unix seconds.
    """

    asked_at: float
    answered_at: float
    jobs: Mapping[str, model.Job] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sighting:
    """Slurm's last answer about a job; ``job`` is None if Slurm answered and knows no such job."""

    job: model.Job | None


class Poller:
    """The cache of jobs and the one loop that fills it.

    Attributes:
        snapshot: The last answer, or None before the first.
        error: Why the last query failed; None if it succeeded.
    """

    def __init__(
        self,
        source: JobSource,
        *,
        poll_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
        policy: backoff.BackoffPolicy | None = None,
    ) -> None:
        self.snapshot: Snapshot | None = None
        self.error: errors.SlurmUnavailable | None = None
        self._source = source
        self._poll_seconds = self._pause_seconds = poll_seconds
        self._clock = clock
        self._backoff = backoff.Backoff(policy or backoff.BackoffPolicy(first_seconds=2.0, cap_seconds=120.0))
        self._not_before = clock()
        self._asked_at = float("-inf")  # of the last query that ended, answered or not
        self._due_at = clock()
        self._wake = asyncio.Event()
        self._answered = asyncio.Condition()
        self._watches: dict[str, list[_Watch]] = {}

    async def run(self) -> None:
        """Query Slurm until cancelled; no answer of Slurm's ends the loop."""
        while True:
            await self._until_due()
            await self._ask()

    def ask_soon(self, *, after_seconds: float = 0.0) -> None:
        """Have the next query begin within this time, if spacing and back-off permit."""
        due_at = self._clock() + after_seconds
        if due_at < self._due_at:
            self._due_at = due_at
            self._wake.set()

    def sighting(self, job_id: str, *, is_it: Callable[[model.Job], bool] = lambda _: True) -> Sighting | None:
        """Return Slurm's last answer about the job, or None if no query was answered since the watch began.

        An unwatched job is known only if the last answer lists it. A job that ``is_it`` rejects counts as absent: a
        slurmctld that lost its last seconds reuses ids.
        """
        if self.snapshot is None:
            return None
        job = self.snapshot.jobs.get(job_id)
        if job is not None and is_it(job):
            return Sighting(job=job)
        since = min((watch.since for watch in self._watches.get(job_id, ())), default=None)
        return None if since is None or self.snapshot.asked_at < since else Sighting(job=None)

    def watch(self, job_id: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` whenever Slurm's answer about the job changes, until the returned function is called.

        Watch the job after its submission: a query that began before does not prove it gone. Calling the returned
        function twice is harmless.
        """
        watch = _Watch(since=self._clock(), changed=changed)
        self._watches.setdefault(job_id, []).append(watch)

        def stop() -> None:
            watches = self._watches.get(job_id, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watches.pop(job_id, None)

        return stop

    async def fresh(self) -> Snapshot:
        """Return the first answer to a query that begins after this call, as adopting a job requires.

        Raises:
            errors.SlurmUnavailable: That query failed.
        """
        since = self._clock()
        self.ask_soon()
        async with self._answered:
            await self._answered.wait_for(lambda: self._asked_at >= since)
            if self.error is not None:
                raise self.error
        assert self.snapshot is not None
        return self.snapshot

    async def newer(self, seen: Snapshot | None) -> Snapshot:
        """Return the newest answer once it differs from ``seen``, without asking for one."""
        async with self._answered:
            await self._answered.wait_for(lambda: self.snapshot is not None and self.snapshot is not seen)
            assert self.snapshot is not None
            return self.snapshot

    async def _until_due(self) -> None:
        while (pause := max(self._due_at, self._not_before) - self._clock()) > 0:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                # Not wait_for: before Python 3.12 it loses a cancellation that arrives together with a wake-up.
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _ask(self) -> None:
        asked_at = self._clock()
        self._due_at = planned_at = asked_at + self._pause_seconds
        try:
            jobs = await self._source.jobs()
        except Exception as error:  # noqa: BLE001 - text of a kind that no Slurm has printed yet must not end the kubelet
            unavailable = error if isinstance(error, errors.SlurmUnavailable) else errors.SlurmUnavailable(repr(error))
            pause = self._failed(unavailable)
            log.warning("Cannot query Slurm for the jobs, will try again", error=str(error), pause_seconds=pause)
        else:
            self.error = None
            self._backoff.succeeded()
            self._not_before = asked_at + MIN_SPACING_SECONDS
            before, self.snapshot = self.snapshot, Snapshot(asked_at=asked_at, answered_at=time.time(), jobs=jobs)
            self._rest(has_news=self._tell(before))
            if self._due_at == planned_at:  # nobody asked for an earlier one meanwhile
                self._due_at = asked_at + self._pause_seconds
        async with self._answered:
            self._asked_at = asked_at
            self._answered.notify_all()

    def _rest(self, *, has_news: bool) -> None:
        """Choose the pause before the next query, unless somebody asks for an earlier one."""
        if has_news:
            self._pause_seconds = self._poll_seconds
            return
        assert self.snapshot is not None
        jobs = [self.snapshot.jobs.get(job_id) for job_id in self._watches]
        do_all_run = all(job is not None and job.state is model.JobState.RUNNING for job in jobs)
        longest = REST_SECONDS if do_all_run else QUEUED_REST_SECONDS
        self._pause_seconds = max(self._poll_seconds, min(2 * self._pause_seconds, longest))

    def _failed(self, error: errors.SlurmUnavailable) -> float:
        self.error = error
        pause = self._backoff.failed()
        if error.limits_rate:
            for _ in range(RATE_LIMIT_FACTOR - 1):
                pause = self._backoff.failed()
        self._not_before = self._clock() + max(pause, MIN_SPACING_SECONDS)
        return round(pause, 1)

    def _tell(self, before: Snapshot | None) -> bool:
        """Notify the watches whose job changed; return whether any did or still may. Unwatched jobs do not count."""
        assert self.snapshot is not None
        old = before.jobs if before else {}
        has_news = False
        for job_id, watches in list(self._watches.items()):
            job = self.snapshot.jobs.get(job_id)
            for watch in list(watches):
                if job is None and self.snapshot.asked_at < watch.since:
                    has_news = True  # the query is older than the watch: absence proves nothing until the next one
                    continue
                was = old.get(job_id)
                if not watch.told or (job is not was and job != was):
                    watch.told = has_news = True
                    watch.changed()
        return has_news


@dataclass(eq=False, kw_only=True)
class _Watch:
    since: float
    changed: Callable[[], None]
    told: bool = False
