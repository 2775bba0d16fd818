"""The Slurm jobs of a state directory: its control plane and its pods."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hpk import config
from hpk.controlplane import ownership
from hpk.controlplane.ownership import Relation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import jobdir
    from hpk.slurm import model


def owner(state: jobdir.StateDirectory) -> ownership.Owner | None:
    """Return the control plane that last wrote its name, running or not."""
    return ownership.read(Path(state.control_plane))


def control_plane(jobs: Mapping[str, model.Job], state: jobdir.StateDirectory) -> model.Job | None:
    """Return the job that is this state directory's control plane, or None.

    The job that holds the directory comes first, then the first in the queue. An ending one counts only if there is no
    other, because its successor may already wait.
    """
    holder = owner(state)
    holding = holder.job_id if holder else ""
    ours = _related(jobs, state, Relation.OURS)
    return min(ours, key=lambda job: (job.state.is_ending, job.id != holding, _number(job)), default=None)


def strangers(jobs: Mapping[str, model.Job], state: jobdir.StateDirectory) -> list[model.Job]:
    """Return control planes whose directory is not known yet."""
    return sorted(_related(jobs, state, Relation.UNKNOWN), key=_number)


def expected(jobs: Mapping[str, model.Job], settings: config.Settings) -> model.Job | None:
    """Return the job that is, or most likely will be, this state directory's control plane.

    Use it to wait for the job, never to end it: plain ``sbatch`` does not reveal a job's directory until it runs, and
    most likely that is the default one.
    """
    found = control_plane(jobs, settings.directory)
    if found is None and ownership.is_same(settings.state, config.Settings.state.expanduser()):
        return next(iter(strangers(jobs, settings.directory)), None)
    return found


def pods(jobs: Mapping[str, model.Job], state: jobdir.StateDirectory) -> list[model.Job]:
    """Return the queued or running jobs that work in a pod's directory."""
    root = Path(state.pods).resolve()
    places = {str(root), state.pods}
    return [job for job in jobs.values() if not job.state.is_over and str(Path(job.work_directory).parent) in places]


def _related(jobs: Mapping[str, model.Job], state: jobdir.StateDirectory, relation: Relation) -> list[model.Job]:
    holder = owner(state)
    living = (job for job in jobs.values() if not job.state.is_over)
    return [job for job in living if ownership.relation(job, state.root, holder) is relation]


def _number(job: model.Job) -> int:
    return int(job.id) if job.id.isdigit() else 0
