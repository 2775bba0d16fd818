"""One Slurm job for each pod: the allocator of today (see `model.Allocator`).

Adopt before submitting.  A pod's directory is made once; when it is there already, from before a restart or
from an sbatch whose answer never came, the agent's claim tells its job; without one, Slurm is asked for a job
with the pod's UID (in its comment or name, or, whatever the user's flags made of those, in its working
directory) before another is submitted.  Should there be two all the same, the claim lets one of them run.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.pods import model
from hpk.slurm import model as slurm_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records
    from hpk.slurm import client, poller

LOG = structlog.get_logger(__name__)

FIRST_LOOK_SECONDS = 3.0
"""After a submission: most jobs have started and told of themselves by then, and need no question."""
CAUSES = {
    slurm_model.JobState.CANCELLED: model.Cause.CANCELLED,
    slurm_model.JobState.TIMEOUT: model.Cause.TIME_LIMIT,
    slurm_model.JobState.DEADLINE: model.Cause.TIME_LIMIT,
    slurm_model.JobState.OUT_OF_MEMORY: model.Cause.OUT_OF_MEMORY,
    slurm_model.JobState.NODE_FAIL: model.Cause.NODE_FAILED,
    slurm_model.JobState.BOOT_FAIL: model.Cause.NODE_FAILED,
    slurm_model.JobState.PREEMPTED: model.Cause.PREEMPTED,
}


class JobPerPod:
    """Gives each pod a Slurm job of its own."""

    def __init__(
        self,
        slurm: client.Slurm,
        jobs: poller.Poller,
        *,
        state: jobdir.State,
        on_change: Callable[[str], None],
    ) -> None:
        self._slurm, self._jobs, self._state, self._on_change = slurm, jobs, state, on_change
        self._stops: dict[str, Callable[[], None]] = {}

    async def find(self, uid: str) -> model.Allocation | None:
        """The pod's job, from its directory, else from Slurm; errors.SlurmUnavailable if Slurm does not say."""
        directory = self._state.pod(uid)
        claimant = await self.claimant(uid)
        submission: records.Submission | None = await asyncio.to_thread(jobdir.read_json, directory.submission)
        job_id = claimant.job_id if claimant else submission["job_id"] if submission else None
        if job_id is not None:
            if self._jobs.snapshot is None:
                await self._jobs.fresh()  # the job of this number must be seen before anything is done to it
        else:
            snapshot = await self._jobs.fresh()
            job_id = max((job.id for job in snapshot.jobs.values() if _carries(job, uid)), key=int, default=None)
        if job_id is None:
            return None
        if submission is None or submission["job_id"] != job_id:
            LOG.info("Adopted a job", uid=uid, job=job_id)
            await self._record(uid, job_id, submitted_at=0.0)
        return model.Allocation(job_id=job_id, uid=uid)

    async def claimant(self, uid: str) -> model.Allocation | None:
        """By the claim that the agent makes before anything runs: slurmctld forgets jobs (MinJobAge), it stays."""
        try:
            job_id = await asyncio.to_thread(Path(self._state.pod(uid).claim).read_text)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise errors.Retryable(f"Cannot tell whether the pod has run: {error}") from error
        return model.Allocation(job_id=job_id, uid=uid) if job_id else None

    async def allocate(self, uid: str, *, script: str) -> model.Allocation:
        """Submit the pod's job; at most once: see `find` for what a lost answer leads to."""
        directory = self._state.pod(uid)
        began_at = time.time()
        job_id = await self._slurm.submit(script, directory=Path(directory.root))
        await self._record(uid, job_id, submitted_at=began_at)
        return model.Allocation(job_id=job_id, uid=uid)

    async def _record(self, uid: str, job_id: str, *, submitted_at: float) -> None:
        """Note the job for the next kubelet; a file system that refuses costs that one a question."""
        submission: records.Submission = {"job_id": job_id, "submitted_at": submitted_at}
        path = self._state.pod(uid).submission
        try:
            await asyncio.to_thread(jobdir.write_json, path, submission)
        except OSError as error:
            LOG.warning("Cannot note a pod's job", uid=uid, job=job_id, path=path, error=str(error))

    async def release(self, allocation: model.Allocation, *, only_queued: bool = False) -> None:
        """Cancel the job, queued or running, or only if it is queued still; never another pod's.

        A Slurm that was set up anew counts from 1 again.  But an answer from before the submission may name the last
        job of that number, which is none of our concern; of such a one there is no sighting.
        """
        sighting = self._sighting(allocation)
        if allocation.is_own and not (sighting and sighting.is_anothers):
            await self._slurm.cancel(allocation.job_id, only_pending=only_queued)
            self.hurry()

    async def recall(self, allocation: model.Allocation) -> model.AllocationState | None:
        """As sacct has it."""
        found = (await self._slurm.accounting([allocation.job_id])).get(allocation.job_id)
        return state_of(found) if found is not None and found.state.is_over and _is_of(found, allocation) else None

    def observe(self, allocation: model.Allocation) -> model.AllocationState:
        """The newest of the poller's cache."""
        sighting = self._sighting(allocation)
        if sighting is None:
            return model.AllocationState(phase=model.Phase.UNKNOWN)
        if sighting.job is None:
            return model.AllocationState(phase=model.Phase.GONE)
        return state_of(sighting.job)

    def _sighting(self, allocation: model.Allocation) -> poller.Sighting | None:
        return self._jobs.sighting(allocation.job_id, is_it=lambda job: _is_of(job, allocation))

    def watch(self, uid: str, allocation: model.Allocation) -> None:
        """Mark the pod at each change of its job, and ask once soon: a job may wait, and its owner wants to know."""
        self.forget(allocation)
        self._stops[allocation.job_id] = self._jobs.watch(allocation.job_id, lambda: self._on_change(uid))
        self._jobs.ask_soon(after_seconds=FIRST_LOOK_SECONDS)

    def forget(self, allocation: model.Allocation) -> None:
        """Follow the job no longer."""
        if stop := self._stops.pop(allocation.job_id, None):
            stop()

    def hurry(self, *, after_seconds: float = 0.0) -> None:
        """Have the poller ask soon, or in this time."""
        self._jobs.ask_soon(after_seconds=after_seconds)


def state_of(job: slurm_model.Job) -> model.AllocationState:
    """What a job's state means for the pod."""
    if not job.state.is_over:
        return model.AllocationState(
            phase=_phase(job.state), is_ending=job.state.is_ending, state=job.state.value, reason=job.reason
        )
    cause = CAUSES.get(job.state, model.Cause.FINISHED)
    return model.AllocationState(phase=model.Phase.ENDED, cause=cause, state=job.state.value, reason=job.reason)


def _phase(state: slurm_model.JobState) -> model.Phase:
    if state is slurm_model.JobState.UNKNOWN:
        return model.Phase.UNKNOWN
    is_queued = state.is_queued or state is slurm_model.JobState.CONFIGURING
    return model.Phase.QUEUED if is_queued else model.Phase.STARTED


def _is_of(job: slurm_model.Job, allocation: model.Allocation) -> bool:
    """Whether a job of the allocation's number is the allocation's; of one without a pod nothing more is known."""
    return not allocation.uid or _carries(job, allocation.uid)


def _carries(job: slurm_model.Job, uid: str) -> bool:
    return uid in (job.comment, job.name) or f"/pods/{uid}" in job.work_directory


def write_work(directory: jobdir.PodDirectory, work: model.Work, script: str) -> None:
    """Write what the job needs.  From then on the directory says that a job may exist.

    Raises:
        errors.Retryable: The file system refused.
    """
    try:
        jobdir.make_directory(directory.logs)
        jobdir.write_json(directory.plan, work.plan)
        jobdir.write_bytes(directory.script, script.encode())
    except OSError as error:
        raise errors.Retryable(f"Cannot write the pod's directory {directory.root}: {error}") from error
