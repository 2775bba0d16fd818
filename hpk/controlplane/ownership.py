"""The holder of a state directory, and the Slurm job of its control plane. Pure but for reading one file.

A job ID alone proves nothing: Slurm counts from 1 again when its ID space wraps or its controller is set up again.
Three facts identify a job, the strongest first:

- its comment, which names the state directory (``hpk up`` writes it, hpk.sbatch writes it for plain ``sbatch``);
- its start time in Slurm, which the control plane recorded with the ID;
- its working directory, which is the state directory for every job that ``hpk up`` submits.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import jobdir
from hpk.host import protocol

if TYPE_CHECKING:
    from hpk.slurm import model

MARK = "hpk-control-plane"
"""The prefix of a control plane job's comment; ``:`` and the state directory follow once that is known."""
FILE = protocol.OWNER_FILE
_SAME_SECONDS = 2.0
"""Two readings of one start time may differ by rounding."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The holder of the state directory, as its file says.

    Attributes:
        job_started_at: When Slurm started the job (SLURM_JOB_START_TIME); 0 if unknown.
        cluster: Slurm's name of the cluster: two clusters may share a home and not know each other's jobs.
        has_lock: Whether it also held the POSIX lock; if so, getting that later on this host proves its end.
        boot_id: The boot ID of the host's kernel; with the host's name, the host's identity.
        token: A unique token of this owner, new at each restart.
    """

    host: str
    job_id: str = ""
    job_started_at: float = 0.0
    started_at: float = 0.0
    cluster: str = ""
    has_lock: bool = False
    boot_id: str = ""
    token: str = ""

    def __str__(self) -> str:
        job = f", Slurm job {self.job_id}" if self.job_id else ""
        return f"host {self.host}{job}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.started_at))}"


def parse(found: Any) -> Owner | None:
    """Parse a JSON value; return None if it is not an owner."""
    if not isinstance(found, dict) or not isinstance(found.get("host"), str):
        return None
    texts: dict[str, Any] = {
        key: str(found.get(key) or "") for key in ("host", "job_id", "cluster", "boot_id", "token")
    }
    try:
        times: dict[str, Any] = {key: float(found.get(key) or 0) for key in ("job_started_at", "started_at")}
    except (TypeError, ValueError):
        return None
    return Owner(**texts, **times, has_lock=found.get("has_lock") is True)


def read(directory: Path) -> Owner | None:
    """Return the last recorded owner of the control plane's directory, or None.

    Only Slurm knows whether it is alive.
    """
    return parse(jobdir.peek_json(str(directory / FILE)))


class Relation(enum.Enum):
    """The relation of a job to a state directory."""

    OURS = "ours"
    """The directory's control plane."""
    ANOTHERS = "another's"
    """The control plane of another directory."""
    UNKNOWN = "unknown"
    """A control plane without a known directory: submitted by plain ``sbatch``, queued or just started."""
    NONE = "none"
    """Not a control plane, as far as can be told."""


def comment(directory: str | Path) -> str:
    """Return the comment of a job that runs the control plane of this state directory."""
    return f"{MARK}:{directory}"


def relation(job: model.Job, directory: str | Path, owner: Owner | None) -> Relation:
    """Return the relation of a job to the state directory with this last owner; the ID alone never decides."""
    named = _directory(job.comment)
    if named:
        return Relation.OURS if is_same(named, directory) else Relation.ANOTHERS
    is_recorded = owner is not None and owner.job_id == job.id and bool(job.id)
    if named == "":  # a control plane's comment from hpk.sbatch, without a directory
        return Relation.OURS if owner and is_recorded and not is_later(job, owner) else Relation.UNKNOWN
    # The comment is the user's own.
    if owner and is_recorded and (_is_same_start(job, owner) or is_same(job.work_directory, directory)):
        return Relation.NONE if is_later(job, owner) else Relation.OURS
    return Relation.NONE


def is_later(job: model.Job, owner: Owner) -> bool:
    """Return whether the job certainly started at another time than the owner's, so that its ID was reused."""
    knows = bool(job.start_time and owner.job_started_at) and not job.state.is_queued
    return knows and not _is_same_start(job, owner)


def is_same(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths name one directory, links resolved."""
    return bool(str(one)) and (Path(one) == Path(other) or Path(one).resolve() == Path(other).resolve())


def _is_same_start(job: model.Job, owner: Owner) -> bool:
    if not job.start_time or not owner.job_started_at:
        return False
    return abs(job.start_time - owner.job_started_at) <= _SAME_SECONDS


def _directory(comment: str) -> str | None:
    """Return the directory in a comment; empty if it names none, None if it is not a control plane's comment."""
    mark, _, directory = comment.partition(":")
    return directory if mark == MARK else None
