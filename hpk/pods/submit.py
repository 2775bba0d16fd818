"""One Slurm job for each pod: the allocator of today (see `model.Allocator`).

Adopt before submitting.  A pod's directory is made once; when it is there already, from before a restart or
from an sbatch whose answer never came, Slurm is asked for a job with the pod's UID (in its comment or name, or,
whatever the user's flags made of those, in its working directory) before another is submitted.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.pods import model
from hpk.slurm import parse

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records
    from hpk.slurm import client, poller

LOG = structlog.get_logger(__name__)

PHASES = {
    parse.JobState.PENDING: model.Phase.QUEUED,
    parse.JobState.CONFIGURING: model.Phase.QUEUED,
    parse.JobState.UNKNOWN: model.Phase.UNKNOWN,
}
CAUSES = {
    parse.JobState.CANCELLED: model.Cause.CANCELLED,
    parse.JobState.TIMEOUT: model.Cause.TIME_LIMIT,
    parse.JobState.DEADLINE: model.Cause.TIME_LIMIT,
    parse.JobState.OUT_OF_MEMORY: model.Cause.OUT_OF_MEMORY,
    parse.JobState.NODE_FAIL: model.Cause.NODE_FAILED,
    parse.JobState.BOOT_FAIL: model.Cause.NODE_FAILED,
    parse.JobState.PREEMPTED: model.Cause.PREEMPTED,
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

    async def find(self, uid: str) -> model.Allocation | None:
        """The pod's job, from its directory, else from Slurm; errors.SlurmUnavailable if Slurm does not say."""
        directory = self._state.pod(uid)
        submission: records.Submission | None = await asyncio.to_thread(jobdir.read_json, directory.submission)
        if submission is not None:
            return model.Allocation(job_id=submission["job_id"])
        found = [job for job in (await self._slurm.jobs()).values() if _carries(job, uid)]
        if not found:
            return None
        newest = max(found, key=lambda job: int(job.id))
        LOG.info("Adopted a job", uid=uid, job=newest.id)
        await self._record(uid, newest.id)
        return model.Allocation(job_id=newest.id)

    async def allocate(self, uid: str, *, script: str) -> model.Allocation:
        """Submit the pod's job; at most once: see `find` for what a lost answer leads to."""
        directory = self._state.pod(uid)
        job_id = await self._slurm.submit(script, directory=directory.root)
        await self._record(uid, job_id)
        return model.Allocation(job_id=job_id)

    async def _record(self, uid: str, job_id: str) -> None:
        submission: records.Submission = {"job_id": job_id, "submitted_at": time.time()}
        await asyncio.to_thread(jobdir.write_json, self._state.pod(uid).submission, submission)

    async def release(self, allocation: model.Allocation) -> None:
        """Cancel the job, queued or running."""
        if allocation.is_own:
            await self._slurm.cancel(allocation.job_id)
            self.hurry()

    def observe(self, allocation: model.Allocation) -> model.AllocationState:
        """The newest of the poller's cache."""
        job = self._jobs.jobs.get(allocation.job_id)
        if job is None:
            is_answered = self._jobs.is_missing(allocation.job_id)
            return model.AllocationState(phase=model.Phase.GONE if is_answered else model.Phase.UNKNOWN)
        return state_of(job)

    def watch(self, uid: str, allocation: model.Allocation) -> None:
        """Mark the pod at each change of its job."""
        self._jobs.follow(allocation.job_id, lambda: self._on_change(uid))

    def forget(self, allocation: model.Allocation) -> None:
        """Follow the job no longer."""
        self._jobs.unfollow(allocation.job_id)

    def hurry(self) -> None:
        """Have the poller ask soon."""
        self._jobs.ask_soon()


def state_of(job: parse.Job) -> model.AllocationState:
    """What a job's state means for the pod."""
    if not job.state.is_ended:
        phase = PHASES.get(job.state, model.Phase.STARTED)
        return model.AllocationState(phase=phase, state=job.state.value, reason=job.reason)
    cause = CAUSES.get(job.state, model.Cause.FINISHED)
    return model.AllocationState(phase=model.Phase.ENDED, cause=cause, state=job.state.value, reason=job.reason)


def _carries(job: parse.Job, uid: str) -> bool:
    return uid in (job.comment, job.name) or f"/pods/{uid}" in job.work_directory


def write_work(directory: jobdir.PodDirectory, work: model.Work, script: str) -> bool:
    """Write what the job needs; False if the directory was there before, so a job may be too.

    Raises:
        errors.Retryable: The file system refused.
    """
    try:
        jobdir.make_directory(os.path.dirname(directory.root))
        is_new = True
        try:
            os.mkdir(directory.root, 0o700)
        except FileExistsError:
            is_new = False
        jobdir.make_directory(directory.logs)
        jobdir.write_json(directory.plan, work.plan)
        jobdir.write_bytes(directory.script, script.encode())
    except OSError as error:
        raise errors.Retryable(f"Cannot write the pod's directory {directory.root}: {error}") from error
    return is_new
