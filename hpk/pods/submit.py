"""One Slurm job for each pod: the allocator of today (see `model.Allocator`).

Adopt before submitting.  A pod's directory is made once; when it is there already, from before a restart or
from an sbatch whose answer never came, the agent's claim tells its job; without one, Slurm is asked for a job
that works in the pod's directory before another is submitted.  Should there be two all the same, the claim lets one
of them run, and `strays` finds the other.

A job is the pod's by its working directory, which the pod's flags cannot set, and never by its number alone: a
slurmctld that was set up anew counts from 1 again.  Comments and names are for people: whoever writes a pod's flags
may put another pod's UID there.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir
from hpk.aio import clock as clocks
from hpk.pods import model, strays
from hpk.slurm import model as slurm_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
        clock: clocks.Clock = clocks.SYSTEM,
    ) -> None:
        self._slurm, self._jobs, self._state, self._on_change, self._clock = slurm, jobs, state, on_change, clock
        # By allocation, not by number: Slurm may give a number out again.
        self._stops: dict[model.Allocation, Callable[[], None]] = {}
        self._followed: dict[str, model.Allocation] = {}
        self._submitted: set[model.Allocation] = set()

    async def find(self, uid: str) -> model.Allocation | None:
        """Return the pod's job by what its directory and Slurm say, or None if it has none.

        Raises:
            errors.SlurmUnavailable: Slurm does not say.
            errors.Retryable: The file system does not say.
        """
        claimed, recorded = await self._claimed(uid), await self._recorded(uid)
        snapshot = self._jobs.snapshot
        if snapshot is None or not (claimed or recorded):
            snapshot = await self._jobs.fresh()  # nothing is done to a number before its job has been seen
        job_id = chosen(snapshot.jobs.values(), uid=uid, claimed=claimed, recorded=recorded)
        if job_id is None:
            return None
        if recorded != job_id:
            LOG.info("Adopted a job", uid=uid, job=job_id)
            await self._record(uid, job_id, submitted_at=0.0)
        return model.Allocation(job_id=job_id, uid=uid)

    async def claimant(self, uid: str) -> model.Allocation | None:
        """Return the job by the claim that the agent makes before anything runs; None without a claim, or a name in it.

        slurmctld forgets jobs (MinJobAge); the claim stays.

        Raises:
            errors.Retryable: The file system does not say.
        """
        job_id = await self._claimed(uid)
        return model.Allocation(job_id=job_id, uid=uid) if job_id else None

    async def _claimed(self, uid: str) -> str:
        try:
            text = await asyncio.to_thread(Path(self._state.pod(uid).claim).read_bytes)
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise errors.Retryable(f"Cannot tell whether the pod has run: {error}") from error
        return text.decode() if text.isdigit() else ""  # torn: it tells that there was a job, and not which

    async def _recorded(self, uid: str) -> str:
        try:
            submission = await asyncio.to_thread(jobdir.read_json, self._state.pod(uid).submission)
        except OSError as error:
            raise errors.Retryable(f"Cannot tell whether the pod was submitted: {error}") from error
        job_id = submission.get("job_id") if submission else None
        return job_id if isinstance(job_id, str) and job_id.isdigit() else ""

    async def allocate(self, uid: str, *, script: str) -> model.Allocation:
        """Submit the pod's job; at most once: see `find` for what a lost answer leads to."""
        directory = self._state.pod(uid)
        began_at = self._clock.time()
        job_id = await self._slurm.submit(script, directory=Path(directory.root))
        made = model.Allocation(job_id=job_id, uid=uid)
        self._submitted.add(made)
        await self._record(uid, job_id, submitted_at=began_at)
        return made

    async def _record(self, uid: str, job_id: str, *, submitted_at: float) -> None:
        """Note the job for the next kubelet; a file system that refuses costs that one a question."""
        submission: records.Submission = {"job_id": job_id, "submitted_at": submitted_at}
        path = self._state.pod(uid).submission
        try:
            await asyncio.to_thread(jobdir.write_json, path, submission)
        except OSError as error:
            LOG.warning("Cannot note a pod's job", uid=uid, job=job_id, path=path, error=str(error))

    async def release(self, allocation: model.Allocation, *, only_queued: bool = False) -> None:
        """Cancel the job, queued or running, or only if it is queued still; never another's of the same number.

        Raises:
            errors.SlurmUnavailable: Not now, or Slurm does not say whose the number is.
        """
        if await self._has_number(allocation):
            await self._slurm.cancel(allocation.job_id, only_pending=only_queued)
            self.hurry()

    async def _has_number(self, allocation: model.Allocation) -> bool:
        """Return whether the job of this number is the allocation's: sbatch or the newest snapshot says so."""
        sighting = self._sighting(allocation)
        if sighting is None and allocation in self._submitted:
            return True  # a snapshot from before the submission may name the last job of the number
        if sighting is None:
            await self._jobs.fresh()
            sighting = self._sighting(allocation)
        return sighting is not None and sighting.job is not None

    async def ask_to_end(self, allocation: model.Allocation) -> None:
        """Send the job's script the signal that asks its agent to end the pod; never another pod's."""
        if await self._has_number(allocation):
            await self._slurm.cancel(allocation.job_id, signal=str(jobdir.END_SIGNAL))

    async def recall(self, allocation: model.Allocation) -> model.AllocationState | None:
        """Return what scontrol, or else sacct, says of a job that is over."""
        found = await self._slurm.details(allocation.job_id)
        if found is None or not _is_of(found, allocation):
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
        self._stop_watching(allocation)
        self._followed[uid] = allocation
        self._stops[allocation] = self._jobs.watch(allocation.job_id, lambda: self._on_change(uid))
        self._jobs.ask_soon(after_seconds=FIRST_LOOK_SECONDS)

    def forget(self, allocation: model.Allocation) -> None:
        """Follow the job no longer."""
        if self._followed.get(allocation.uid) == allocation:
            del self._followed[allocation.uid]
        self._submitted.discard(allocation)
        self._stop_watching(allocation)

    def _stop_watching(self, allocation: model.Allocation) -> None:
        if stop := self._stops.pop(allocation, None):
            stop()

    def hurry(self, *, after_seconds: float = 0.0) -> None:
        """Have the poller ask soon, or in this time."""
        self._jobs.ask_soon(after_seconds=after_seconds)

    async def sweep(self, pods: strays.Pods) -> None:
        """Cancel what lost answers have left in the queue, after each of Slurm's answers, until cancelled.

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
        """Return whose directories are there; one that cannot be seen now is looked at after the next answer."""
        return frozenset(uid for uid in uids if os.path.isdir(self._state.pod(uid).root))  # noqa: PTH112 - raises nothing

    async def _end_stray(self, stray: strays.Stray) -> None:
        if stray.has_directory:
            self._on_change(stray.uid)  # the pod was deleted while no kubelet ran: its worker ends the job in order
            return
        LOG.warning("Cancelling a job that is no pod's", uid=stray.uid, job=stray.job_id, why=stray.why)
        try:
            await self._slurm.cancel(stray.job_id, only_pending=True)
        except errors.HpkError as error:
            LOG.warning("Cannot cancel it, will try again", job=stray.job_id, error=str(error))


def state_of(job: slurm_model.Job) -> model.AllocationState:
    """What a job's state means for the pod."""
    if not job.state.is_over:
        return model.AllocationState(
            phase=_phase(job.state), is_ending=job.state.is_ending, state=job.state.value, reason=job.reason
        )
    cause = CAUSES.get(job.state, model.Cause.FINISHED)
    return model.AllocationState(
        phase=model.Phase.ENDED,
        cause=cause,
        state=job.state.value,
        reason=job.reason,
        exit_code=job.exit_code,
        signal=job.signal,
        nodes=job.nodes,
    )


def _phase(state: slurm_model.JobState) -> model.Phase:
    if state is slurm_model.JobState.UNKNOWN:
        return model.Phase.UNKNOWN
    is_queued = state.is_queued or state is slurm_model.JobState.CONFIGURING
    return model.Phase.QUEUED if is_queued else model.Phase.STARTED


def _is_of(job: slurm_model.Job, allocation: model.Allocation) -> bool:
    """Return whether a job of the allocation's number is the allocation's; of one without a pod no more is known."""
    return not allocation.uid or strays.carries(job, allocation.uid)


def chosen(jobs: Iterable[slurm_model.Job], *, uid: str, claimed: str = "", recorded: str = "") -> str | None:
    """Return the number of the pod's job, or None if it has none.

    The claim's counts before all, because that job runs the pod or has run it.  Of several jobs in the pod's directory
    that counts which has started, and would claim it; then the one that job.json records; then the newest.  If Slurm
    has none, it has forgotten the recorded one.
    """
    if claimed:
        return claimed
    mine = [job for job in jobs if strays.carries(job, uid)]
    if not mine:
        return recorded or None
    return min(mine, key=lambda job: (job.state.is_over, job.state.is_queued, job.id != recorded, -int(job.id))).id


def write_work(directory: jobdir.PodDirectory, work: model.Work, script: str) -> None:
    """Write what the job needs.  From then on the directory says that a job may exist, after a power cut too.

    Raises:
        errors.Retryable: The file system refused.
    """
    try:
        jobdir.make_directory(directory.logs)
        jobdir.sync_directory(str(Path(directory.root).parent))
        jobdir.write_bytes(directory.script, script.encode(), is_durable=False)  # sbatch has it already; for people
        jobdir.write_json(directory.plan, work.plan)
    except OSError as error:
        raise errors.Retryable(f"Cannot write the pod's directory {directory.root}: {error}") from error
