"""Which Slurm job is the control plane of a state directory, and which jobs are its pods'."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpk.controlplane import ownership
from hpk.controlplane.ownership import Relation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import config, jobdir
    from hpk.slurm import model

DEFAULT_STATE = "~/.hpk"
"""Where a control plane that plain ``sbatch`` has queued most likely belongs."""


def owner(state: jobdir.State) -> ownership.Owner | None:
    """Return the last one that wrote its name; whether it lives, Slurm knows."""
    return ownership.read(Path(state.control_plane))


def control_plane(jobs: Mapping[str, model.Job], state: jobdir.State) -> model.Job | None:
    """Return the job that is this state directory's control plane, or None.

    The one that holds the directory comes first, then the first that queues.  One that is ending counts only if there
    is no other: its successor may wait for it already.
    """
    holder = owner(state)
    holding = holder.job_id if holder else ""
    ours = _related(jobs, state, Relation.OURS)
    return min(ours, key=lambda job: (job.state.is_ending, job.id != holding, _number(job)), default=None)


def strangers(jobs: Mapping[str, model.Job], state: jobdir.State) -> list[model.Job]:
    """Return control planes that have not told their directory yet; those of other directories are not among them."""
    return sorted(_related(jobs, state, Relation.UNKNOWN), key=_number)


def expected(jobs: Mapping[str, model.Job], settings: config.Settings) -> model.Job | None:
    """Return the job that is, or most likely will be, this state directory's control plane.

    Good enough to wait for, never to end it: plain ``sbatch`` does not say for which directory a job is until it runs.
    """
    found = control_plane(jobs, settings.directory)
    if found is None and ownership.is_same(settings.state, Path(DEFAULT_STATE).expanduser()):
        return next(iter(strangers(jobs, settings.directory)), None)
    return found


def pods(jobs: Mapping[str, model.Job], state: jobdir.State) -> list[model.Job]:
    """Return the jobs of pods that are queued or running: those whose directory is a pod's."""
    root = Path(state.pods).resolve()
    places = {str(root), state.pods}
    return [job for job in jobs.values() if not job.state.is_over and str(Path(job.work_directory).parent) in places]


def _related(jobs: Mapping[str, model.Job], state: jobdir.State, relation: Relation) -> list[model.Job]:
    holder = owner(state)
    living = (job for job in jobs.values() if not job.state.is_over)
    return [job for job in living if ownership.relation(job, state.root, holder) is relation]


def _number(job: model.Job) -> int:
    return int(job.id) if job.id.isdigit() else 0
