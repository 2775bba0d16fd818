"""Which Slurm job is the control plane of a state directory, and which jobs are its pods'."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import jobdir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.slurm import model

COMMENT = "hpk-control-plane"
"""What hpk.sbatch writes into its job's comment; a user's own --comment hides a queued job, not a running one."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds the state directory, as the control plane itself wrote it."""

    host: str
    job_id: str
    started_at: float


def owner(state: jobdir.State) -> Owner | None:
    """The last one that wrote its name; whether it lives, Slurm knows."""
    try:
        found: dict[str, Any] | None = jobdir.read_json(str(Path(state.control_plane) / "owner.json"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    return Owner(
        host=str(found.get("host", "")),
        job_id=str(found.get("job_id", "")),
        started_at=float(found.get("started_at") or 0.0),
    )


def control_plane(jobs: Mapping[str, model.Job], state: jobdir.State) -> model.Job | None:
    """The control plane's job: the one that holds the state, else the first that queues; None if there is none.

    One that is ending counts only if there is no other: its successor may wait for it already.
    """
    holder = owner(state)
    holding = holder.job_id if holder else ""

    def order(job: model.Job) -> tuple[bool, bool, int]:
        return job.state.is_ending, job.id != holding, int(job.id) if job.id.isdigit() else 0

    ours = [job for job in jobs.values() if (job.comment == COMMENT or job.id == holding) and not job.state.is_over]
    return min(ours, key=order, default=None)


def pods(jobs: Mapping[str, model.Job], state: jobdir.State) -> list[model.Job]:
    """The jobs of pods that are queued or running: those whose directory is a pod's."""
    root = Path(state.pods).resolve()
    places = {str(root), state.pods}
    return [job for job in jobs.values() if not job.state.is_over and str(Path(job.work_directory).parent) in places]
