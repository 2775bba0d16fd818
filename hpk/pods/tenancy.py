"""A pod's stay in an allocation, from the first look for one until the pod is forgotten (ADR 0023)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from hpk.pods import allocations, postmortem

if TYPE_CHECKING:
    from hpk import records
    from hpk.kube import v1
    from hpk.pods import services

LOG = structlog.get_logger(__name__)


class Tenancy:
    """The one owner of which allocation is the pod's. Each coroutine may raise errors.SlurmUnavailable.

    Attributes:
        allocation: The pod's job, once it has one.
        is_adopted: Whether this kubelet found that job instead of submitting it: it may have started long ago.
        has_looked: Whether it is known that the pod has no job but `allocation`.
        was_alive: Whether the job was ever seen queued or running.
    """

    def __init__(self, uid: str, used: services.Services) -> None:
        self.uid, self._s = uid, used
        self.allocation: allocations.Allocation | None = None
        self.is_adopted = False
        self.has_looked = False
        self.was_alive = False
        self._inquiry = self._inquire()

    def _inquire(self) -> postmortem.Inquiry:
        return postmortem.Inquiry(self._s.allocator, self._s.state.pod(self.uid), self._s.clock)

    async def find(self) -> allocations.Allocation | None:
        """Return the pod's existing allocation, or None; raise errors.Retryable if its directory cannot be read."""
        return await self._s.allocator.find(self.uid)

    async def submit(self, script: str) -> allocations.Allocation:
        """Ask for an allocation.

        Raises:
            errors.JobRefused: For good; there is no job.
            errors.SlurmUnavailable: Not now; there may be a job nevertheless.
        """
        self.has_looked = False
        made = await self._s.allocator.allocate(self.uid, script=script)
        self.has_looked = True
        self.take(made, is_adopted=False)
        return made

    def take(self, allocation: allocations.Allocation, *, is_adopted: bool) -> None:
        """Follow this allocation from now on."""
        if self.allocation is not None:
            self._s.allocator.forget(self.allocation)
        self.allocation, self.is_adopted, self._inquiry = allocation, is_adopted, self._inquire()
        self._s.allocator.watch(self.uid, allocation)

    @property
    def state(self) -> allocations.AllocationState | None:
        """The job's state according to Slurm, or to the evidence about its end, if any; None without a job."""
        if self.allocation is None:
            return None
        state = self.words.state if self.words else self._s.allocator.observe(self.allocation)
        self.was_alive = self.was_alive or state.phase in {
            allocations.Phase.QUEUED,
            allocations.Phase.STARTED,
        }
        return state

    @property
    def words(self) -> postmortem.LastWords | None:
        """The evidence about the job's end; None until it is known."""
        return self._inquiry.words

    @property
    def is_released(self) -> bool:
        """Whether Slurm has released the job, or there never was one."""
        return (state := self.state) is None or state.is_over

    def doubt(self) -> bool:
        """Return whether Slurm lists a job again that it had forgotten, and drop the evidence about its end."""
        return self.allocation is not None and self._inquiry.doubt(self.allocation)

    async def learn(self, pod: v1.Pod, newest: records.Report | None) -> records.Report | None:
        """Ask how a job that is over ended; return the report that its agent could not leave, or None."""
        if self.allocation is None or not self.is_released:
            return None
        is_urgent = pod.metadata.deletion_timestamp is not None
        words = await self._inquiry.learn(self.allocation, is_urgent=is_urgent)
        return postmortem.report(pod, words, newest, now=self._s.clock.time()) if words else None

    async def follow_the_claimant(self, newest: records.Report | None) -> None:
        """If a lost answer has led to two jobs, follow the one that runs the pod; the other ends by itself."""
        mine = self.allocation
        if mine is None:
            return
        is_anothers = newest is not None and newest["job_id"] not in {"", mine.job_id}
        if not is_anothers and (newest is not None or not self.is_released):
            return
        claimant = await self._s.allocator.claimant(self.uid)
        if claimant is None or claimant.job_id == mine.job_id:
            return
        LOG.warning("Another job runs the pod, by its claim", uid=self.uid, job=mine.job_id, claimant=claimant.job_id)
        await self.release(only_queued=True)
        self.take(claimant, is_adopted=True)

    def ask_soon(self, seconds: float) -> None:
        """Query Slurm for the job within this time."""
        self._s.allocator.ask_soon(after_seconds=seconds)

    async def release(self, *, only_queued: bool = False) -> None:
        """Cancel the job, or only if it is still queued."""
        if self.allocation is not None:
            await self._s.allocator.release(self.allocation, only_queued=only_queued)

    async def ask_to_end(self) -> None:
        """Make the pod end within its grace although its agent cannot be told, unless its job is over."""
        if self.allocation is not None and not self.is_released:
            await self._s.allocator.ask_to_end(self.allocation)

    def forget(self) -> None:
        """Stop following the job, and let the gate wake a pod in its place if the job was ever alive or ours."""
        if self.allocation is None:
            return
        self._s.allocator.forget(self.allocation)
        if self.was_alive or not self.is_adopted:
            self._s.gate.job_ended()
