"""``hpk down``: end the control plane, then the pods' jobs, then remove the kubeconfig's context."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors, kubeconfig
from hpk.aio import backoff
from hpk.cli import instance, slurmaccess

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import config
    from hpk.slurm import client, model

STOP_SECONDS = 90.0
"""How long the control plane may take to stop in its own order before its job is cancelled."""
PODS_SECONDS = 60.0
"""How long the pods' jobs may take to end; Slurm kills them after its KillWait."""
PAUSES = backoff.BackoffPolicy(first_seconds=0.5, factor=1.5, cap_seconds=5.0)


async def run(settings: config.Settings, *, is_keeping_pods: bool) -> int:
    """End everything; do nothing if nothing runs.

    Raises:
        errors.SlurmUnavailable: Slurm does not answer; what still runs is unknown.
    """
    state = settings.directory
    with slurmaccess.slurm(settings) as slurm:
        jobs = await slurm.jobs()
        if (job := instance.control_plane(jobs, state)) is None:
            print("No control plane runs")
            for stranger in instance.strangers(jobs, state):
                print(
                    f"Left job {stranger.id} ({stranger.state.value}) alone: a control plane that has not recorded its "
                    f"directory yet. If it is the one to stop, 'scancel {stranger.id}' ends it"
                )
        else:
            # First, because a running control plane would replace the pods.
            await _stop(slurm, job)
            print(f"Stopped the control plane (job {job.id})")
            jobs = await slurm.jobs()
        pods = [pod.id for pod in instance.pods(jobs, state)]
        if is_keeping_pods:
            print(f"Left {_jobs(pods)} alone; the next control plane adopts them")
        elif pods:
            await slurm.cancel_many(pods)
            await _until(slurm, lambda found: not _alive(found, pods), PODS_SECONDS)
            print(f"Cancelled {_jobs(pods)}")
    _forget(settings)
    return 0


async def _stop(slurm: client.Slurm, job: model.Job) -> None:
    """Ask the control plane to stop in its own order; cancel its job if it does not."""
    if job.state.is_queued:
        await slurm.cancel(job.id)
        return
    await slurm.cancel(job.id, signal="TERM")
    if await _until(slurm, lambda found: not _alive(found, [job.id]), STOP_SECONDS):
        return
    print(f"The control plane did not stop in {STOP_SECONDS:.0f} s; cancelling job {job.id}")
    await slurm.cancel(job.id)
    await _until(slurm, lambda found: not _alive(found, [job.id]), PODS_SECONDS)


def _jobs(pods: list[str]) -> str:
    return "one pod's job" if len(pods) == 1 else f"the jobs of {len(pods)} pods"


def _alive(jobs: dict[str, model.Job], ids: list[str]) -> bool:
    return any(job_id in jobs and not jobs[job_id].state.is_over for job_id in ids)


async def _until(slurm: client.Slurm, is_so: Callable[[dict[str, model.Job]], bool], seconds: float) -> bool:
    """Ask with growing pauses until the condition holds; return whether it did in time."""
    loop = asyncio.get_running_loop()
    deadline, pauses = loop.time() + seconds, backoff.Backoff(PAUSES)
    while loop.time() < deadline:
        await asyncio.sleep(pauses.failed())
        with contextlib.suppress(errors.SlurmUnavailable):  # silence proves nothing
            if is_so(await slurm.jobs()):
                return True
    return False


def _forget(settings: config.Settings) -> None:
    """Remove the kubeconfig and its context; leave another state directory's.

    The file goes last: while it exists, another 'hpk down' can do what this one could not.

    Raises:
        errors.Conflict: The lock of the user's kubeconfig stays held.
        errors.Fatal: One of the two files cannot be changed.
    """
    ours = Path(settings.directory.kubeconfig)
    try:
        document = ours.read_bytes()
    except FileNotFoundError:
        return  # already removed, or never written
    if kubeconfig.remove(document):
        print(f"Removed the context '{kubeconfig.NAME}' from {kubeconfig.path()}")
    ours.unlink(missing_ok=True)
