"""One Slurm job for each pod: today's allocator (see `allocations.Allocator`).

It adopts before it submits. A pod's directory is created once. If it exists already, from before a restart or from an
sbatch without an answer, the agent's claim names its job; without a claim, Slurm is asked for a job in that directory
before another is submitted. If there are two anyway, the claim lets one run the pod, and `strays` finds the other.

A job is matched by its working directory, which the pod's flags cannot set, and never by its id alone: a reinstalled
slurmctld counts from 1 again. Comments and names are for people: a pod's flags may contain another pod's UID.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.aio import clock as clocks
from hpk.pods import allocations, strays
from hpk.slurm import model as slurm_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hpk import records
    from hpk.slurm import client, poller

LOG = structlog.get_logger(__name__)

FIRST_LOOK_SECONDS = 3.0
"""The delay of the first query after a submission: by then most jobs have started and reported by themselves."""
CAUSES = {
    slurm_model.JobState.CANCELLED: allocations.Cause.CANCELLED,
    slurm_model.JobState.TIMEOUT: allocations.Cause.TIME_LIMIT,
    slurm_model.JobState.DEADLINE: allocations.Cause.TIME_LIMIT,
    slurm_model.JobState.OUT_OF_MEMORY: allocations.Cause.OUT_OF_MEMORY,
    slurm_model.JobState.NODE_FAIL: allocations.Cause.NODE_FAILED,
    slurm_model.JobState.BOOT_FAIL: allocations.Cause.NODE_FAILED,
    slurm_model.JobState.PREEMPTED: allocations.Cause.PREEMPTED,
}


class JobPerPod:
    """The allocator that gives each pod its own Slurm job."""

    def __init__(
        self,
        slurm: client.Slurm,
        jobs: poller.Poller,
        *,
        state: jobdir.StateDirectory,
        on_change: Callable[[str], None],
        clock: clocks.Clock = clocks.SYSTEM,
    ) -> None:
        self._slurm, self._jobs, self._state, self._on_change, self._clock = slurm, jobs, state, on_change, clock
        # By allocation, not by id: Slurm may reuse an id.
        self._stops: dict[allocations.Allocation, Callable[[], None]] = {}
        self._followed: dict[str, allocations.Allocation] = {}
        self._submitted: set[allocations.Allocation] = set()

    async def find(self, uid: str) -> allocations.Allocation | None:
        """Return the pod's job according to its directory and Slurm, or None if it has none."""
        claimed, recorded = await self._claimed(uid), await self._recorded(uid)
        snapshot = self._jobs.snapshot
        if snapshot is None or not (claimed or recorded):
            snapshot = await self._jobs.fresh()  # its job must be seen before anything is done to the id
        job_id = chosen(snapshot.jobs.values(), uid=uid, claimed=claimed, recorded=recorded)
        if job_id is None:
            return None
        if recorded != job_id:
            LOG.info("Adopted a job", uid=uid, job=job_id)
            await self._record(uid, job_id, submitted_at=0.0)
        return allocations.Allocation(job_id=job_id, uid=uid)

    async def claimant(self, uid: str) -> allocations.Allocation | None:
        """Return the job whose agent claimed the pod. slurmctld forgets jobs (MinJobAge); the claim stays."""
        job_id = await self._claimed(uid)
        return allocations.Allocation(job_id=job_id, uid=uid) if job_id else None

    async def _claimed(self, uid: str) -> str:
        try:
            text = await asyncio.to_thread(Path(self._state.pod(uid).claim).read_bytes)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise errors.Retryable(f"Cannot tell whether the pod has run: {error}") from error
        return text.decode() if text.isdigit() else ""  # torn: there was a job, but which is unknown

    async def _recorded(self, uid: str) -> str:
        try:
            submission = await asyncio.to_thread(jobdir.read_json, self._state.pod(uid).submission)
        except OSError as error:
            raise errors.Retryable(f"Cannot tell whether the pod was submitted: {error}") from error
        job_id = submission.get("job_id") if submission else None
        return job_id if isinstance(job_id, str) and job_id.isdigit() else ""

    async def allocate(self, uid: str, *, script: str) -> allocations.Allocation:
        """Submit the pod's job."""
        directory = self._state.pod(uid)
        began_at = self._clock.time()
        job_id = await self._slurm.submit(script, directory=Path(directory.root))
        made = allocations.Allocation(job_id=job_id, uid=uid)
        self._submitted.add(made)
        await self._record(uid, job_id, submitted_at=began_at)
        return made

    async def _record(self, uid: str, job_id: str, *, submitted_at: float) -> None:
        """Record the job for the next kubelet; without the record, that one has to ask Slurm."""
        submission: records.Submission = {"job_id": job_id, "submitted_at": submitted_at}
        path = self._state.pod(uid).submission
        try:
            await asyncio.to_thread(jobdir.write_json, path, submission)
        except OSError as error:
            LOG.warning("Cannot record a pod's job", uid=uid, job=job_id, path=path, error=str(error))

    async def release(self, allocation: allocations.Allocation, *, only_queued: bool = False) -> None:
        """Cancel the job, or only if it is still queued; never another job with the same id."""
        if await self._has_number(allocation):
            await self._slurm.cancel(allocation.job_id, only_pending=only_queued)
            self.ask_soon()

    async def _has_number(self, allocation: allocations.Allocation) -> bool:
        """Return whether the id is the allocation's job's, according to sbatch or the newest snapshot."""
        sighting = self._sighting(allocation)
        if sighting is None and allocation in self._submitted:
            return True  # a snapshot from before the submission may list an earlier job with this id
        if sighting is None:
            await self._jobs.fresh()
            sighting = self._sighting(allocation)
        return sighting is not None and sighting.job is not None

    async def ask_to_end(self, allocation: allocations.Allocation) -> None:
        """Send the job's script the signal that makes its agent end the pod; never another pod's."""
        if await self._has_number(allocation):
            await self._slurm.cancel(allocation.job_id, signal=str(jobdir.END_SIGNAL))

    async def recall(self, allocation: allocations.Allocation) -> allocations.AllocationState | None:
        """Return what scontrol, or else sacct, reports about a job that is over."""
        found = await self._slurm.details(allocation.job_id)
        if found is None or not _is_of(found, allocation):
            found = (await self._slurm.accounting([allocation.job_id])).get(allocation.job_id)
        return state_of(found) if found is not None and found.state.is_over and _is_of(found, allocation) else None

    def observe(self, allocation: allocations.Allocation) -> allocations.AllocationState:
        """Return the state from the poller's newest answer."""
        sighting = self._sighting(allocation)
        if sighting is None:
            return allocations.AllocationState(phase=allocations.Phase.UNKNOWN)
        if sighting.job is None:
            return allocations.AllocationState(phase=allocations.Phase.GONE)
        return state_of(sighting.job)

    def _sighting(self, allocation: allocations.Allocation) -> poller.Sighting | None:
        return self._jobs.sighting(allocation.job_id, is_it=lambda job: _is_of(job, allocation))

    def watch(self, uid: str, allocation: allocations.Allocation) -> None:
        """Mark the pod at each change of its job, and query Slurm soon, so that its owner learns why the job waits."""
        self._stop_watching(allocation)
        self._followed[uid] = allocation
        self._stops[allocation] = self._jobs.watch(allocation.job_id, lambda: self._on_change(uid))
        self._jobs.ask_soon(after_seconds=FIRST_LOOK_SECONDS)

    def forget(self, allocation: allocations.Allocation) -> None:
        """Stop following the job."""
        if self._followed.get(allocation.uid) == allocation:
            del self._followed[allocation.uid]
        self._submitted.discard(allocation)
        self._stop_watching(allocation)

    def _stop_watching(self, allocation: allocations.Allocation) -> None:
        if stop := self._stops.pop(allocation, None):
            stop()

    def ask_soon(self, *, after_seconds: float = 0.0) -> None:
        """Make the poller query Slurm within this time."""
        self._jobs.ask_soon(after_seconds=after_seconds)

    async def sweep(self, pods: strays.CurrentPods) -> None:
        """Cancel the jobs that lost answers left in the queue, after each of Slurm's answers, until cancelled.

        The pods must have been listed once.
        """
        seen = None
        places = await asyncio.to_thread(strays.places, self._state)
        while True:
            seen = await self._jobs.newer(seen)
            ours = strays.ours(seen.jobs.values(), places=places)
            gone = [uid for uid in ours if not pods.is_known(uid)]
            left = await asyncio.to_thread(self._left, gone) if gone else frozenset[str]()
            for stray in list(strays.find(ours, left=left, followed=self._followed, pods=pods)):
                await self._end_stray(stray)

    def _left(self, uids: Iterable[str]) -> frozenset[str]:
        """Return the UIDs with a directory; one that cannot be read now is checked after the next answer."""
        return frozenset(uid for uid in uids if os.path.isdir(self._state.pod(uid).root))  # noqa: PTH112 - raises nothing

    async def _end_stray(self, stray: strays.Stray) -> None:
        if stray.has_directory:
            self._on_change(stray.uid)  # the pod was deleted while no kubelet ran: its worker ends the job in order
            return
        LOG.warning("Cancelling a job that belongs to no pod", uid=stray.uid, job=stray.job_id, why=stray.why)
        try:
            await self._slurm.cancel(stray.job_id, only_pending=True)
        except errors.HpkError as error:
            LOG.warning("Cannot cancel it, will try again", job=stray.job_id, error=str(error))


def state_of(job: slurm_model.Job) -> allocations.AllocationState:
    """Return the allocation state that follows from a job's state."""
    if not job.state.is_over:
        return allocations.AllocationState(
            phase=_phase(job.state), is_ending=job.state.is_ending, state=job.state.value, reason=job.reason
        )
    cause = CAUSES.get(job.state, allocations.Cause.FINISHED)
    return allocations.AllocationState(
        phase=allocations.Phase.ENDED,
        cause=cause,
        state=job.state.value,
        reason=job.reason,
        exit_code=job.exit_code,
        signal=job.signal,
        nodes=job.nodes,
    )


def _phase(state: slurm_model.JobState) -> allocations.Phase:
    if state is slurm_model.JobState.UNKNOWN:
        return allocations.Phase.UNKNOWN
    is_queued = state.is_queued or state is slurm_model.JobState.CONFIGURING
    return allocations.Phase.QUEUED if is_queued else allocations.Phase.STARTED


def _is_of(job: slurm_model.Job, allocation: allocations.Allocation) -> bool:
    """Return whether a job with the allocation's id is the allocation's; without a UID, the id must suffice."""
    return not allocation.uid or strays.carries(job, allocation.uid)


def chosen(jobs: Iterable[slurm_model.Job], *, uid: str, claimed: str = "", recorded: str = "") -> str | None:
    """Return the id of the pod's job, or None if it has none.

    The claim decides, because that job has run the pod. Of several jobs in the pod's directory, the started one counts,
    which would claim the pod; then the recorded one; then the newest. If Slurm lists none, it has forgotten the
    recorded one.
    """
    if claimed:
        return claimed
    mine = [job for job in jobs if strays.carries(job, uid)]
    if not mine:
        return recorded or None
    return min(mine, key=lambda job: (job.state.is_over, job.state.is_queued, job.id != recorded, -int(job.id))).id


def write_work(directory: jobdir.PodDirectory, plan: records.PodPlan, script: str) -> None:
    """Write the job's files. From then on the directory shows that a job may exist, even after a power failure.

    Raises:
        errors.Retryable: The file system refused.
    """
    try:
        jobdir.make_directory(directory.logs)
        jobdir.sync_directory(str(Path(directory.root).parent))
        jobdir.write_bytes(directory.script, script.encode(), is_durable=False)  # for people: sbatch has it on stdin
        jobdir.write_json(directory.plan, plan)
    except OSError as error:
        raise errors.Retryable(f"Cannot write the pod's directory {directory.root}: {error}") from error
