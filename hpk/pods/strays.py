"""Queued jobs that no pod will use, left by an sbatch whose answer was lost; pure.

Such a job counts against the user's limits, and would start in a directory that is gone. It is cancelled only if it
certainly has no pod, and only if this state directory's kubelet submitted it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from hpk import jobdir
    from hpk.pods import allocations
    from hpk.slurm import model as slurm_model


class CurrentPods(Protocol):
    """The node's current pods."""

    def is_known(self, uid: str) -> bool:
        """Return whether the API server has the pod, or a worker handles it."""

    def is_over(self, uid: str) -> bool:
        """Return whether the pod's phase is final."""


@dataclass(frozen=True, kw_only=True)
class Stray:
    """A job to end.

    Attributes:
        has_directory: Whether the directory of its deleted pod exists.
    """

    job_id: str
    uid: str
    why: str
    has_directory: bool = False


def carries(job: slurm_model.Job, uid: str) -> bool:
    """Return whether the job was submitted for the pod with this UID.

    Its working directory tells, however it is spelled, because pods' flags cannot set it. A script with a path and
    without our comment was submitted by a person in that directory.
    """
    is_there = job.work_directory.endswith(f"/pods/{uid}")
    is_ours = job.comment == uid or not job.command.startswith("/")
    return is_there and is_ours and job.id.isdigit()


def places(state: jobdir.StateDirectory) -> frozenset[str]:
    """Return the spellings of the directory that holds all pods' directories; blocks, so run it in a thread."""
    return frozenset({state.pods, os.path.realpath(state.pods)})


def ours(jobs: Iterable[slurm_model.Job], *, places: Container[str]) -> dict[str, list[slurm_model.Job]]:
    """Return this control plane's jobs that are not over, by their pod's UID; others work in other directories."""
    found: dict[str, list[slurm_model.Job]] = {}
    for job in jobs:
        parent, _, uid = job.work_directory.rpartition("/")
        if parent in places and carries(job, uid) and not (job.state.is_over or job.state.is_ending):
            found.setdefault(uid, []).append(job)
    return found


def find(
    jobs: Mapping[str, list[slurm_model.Job]],
    *,
    left: Container[str],
    followed: Mapping[str, allocations.Allocation],
    pods: CurrentPods,
) -> Iterator[Stray]:
    """Yield the jobs that certainly belong to no pod.

    These are queued jobs, and all jobs of deleted pods whose directories exist, `left`. Other started jobs end by
    themselves: their agents find the claim, or no directory. A living pod without an allocation in `followed` may yet
    adopt any of its jobs.
    """
    for uid, mine in jobs.items():
        if not pods.is_known(uid):
            has_directory = uid in left
            why = "its pod is gone"
            others = [job for job in mine if has_directory or job.state.is_queued]
            yield from (Stray(job_id=job.id, uid=uid, why=why, has_directory=has_directory) for job in others)
            continue
        follows = followed[uid].job_id if uid in followed else ""
        if follows and any(job.id == follows for job in mine):
            why = f"its pod has job {follows}"
        elif not follows and pods.is_over(uid):
            why = "its pod is over"
        else:
            continue
        others = [job for job in mine if job.state.is_queued and job.id != follows]
        yield from (Stray(job_id=job.id, uid=uid, why=why) for job in others)
