"""Slurm's answers as frozen values, without its text formats."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class JobState(enum.Enum):
    """Slurm's job states (squeue(1)); the value is Slurm's word as ``squeue -o %T`` prints it."""

    PENDING = "PENDING"
    """Queued; ``reason`` says why."""
    CONFIGURING = "CONFIGURING"
    """Its nodes are still booting."""
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    """Has nodes; its processes are stopped."""
    STOPPED = "STOPPED"
    """Has nodes; its processes received SIGSTOP."""
    RESIZING = "RESIZING"
    SIGNALING = "SIGNALING"
    STAGE_OUT = "STAGE_OUT"
    """Ended; a burst buffer is being emptied."""
    COMPLETING = "COMPLETING"
    """Ended; some of its processes may still exist."""
    REQUEUED = "REQUEUED"
    """Ending, to be queued again."""
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    """Queued again, and held."""
    SPECIAL_EXIT = "SPECIAL_EXIT"
    """Queued again, held, and marked as a special exit."""
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    """Held because its reservation was deleted."""
    REVOKED = "REVOKED"
    """Ran on another cluster of a federation."""
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    """Cancelled by the user or an administrator."""
    TIMEOUT = "TIMEOUT"
    DEADLINE = "DEADLINE"
    NODE_FAIL = "NODE_FAIL"
    POWER_UP_NODE = "POWER_UP_NODE"
    """Its nodes are being powered up."""
    EXPEDITING = "EXPEDITING"
    """Queued again, ahead of others."""
    UPDATE_DB = "UPDATE_DB"
    """Ended; accounting is being updated."""
    BOOT_FAIL = "BOOT_FAIL"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    """Slurm could not start it on its nodes, and may queue it again."""
    RECONFIG_FAIL = "RECONFIG_FAIL"
    """Its nodes could not be reconfigured; it may be queued again."""
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"
    """An unknown state: neither queued, nor running, nor over."""

    @property
    def is_queued(self) -> bool:
        """Whether the job waits for resources."""
        return self in _QUEUED

    @property
    def is_ending(self) -> bool:
        """Whether its programs are being ended: it may still hold its resources, and may be queued again."""
        return self in _ENDING

    @property
    def is_over(self) -> bool:
        """Whether the job has ended for good; COMPLETING is not over."""
        return self in _OVER


_QUEUED = frozenset({
    JobState.PENDING, JobState.REQUEUED, JobState.REQUEUE_FED, JobState.REQUEUE_HOLD,
    JobState.SPECIAL_EXIT, JobState.RESV_DEL_HOLD, JobState.EXPEDITING,
})  # fmt: skip
_ENDING = frozenset({
    JobState.COMPLETING, JobState.STAGE_OUT, JobState.UPDATE_DB, JobState.LAUNCH_FAILED, JobState.RECONFIG_FAIL,
})  # fmt: skip
_OVER = frozenset({
    JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.TIMEOUT, JobState.DEADLINE,
    JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY, JobState.PREEMPTED, JobState.REVOKED,
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job of this user.

    Attributes:
        reason: Slurm's word for why it waits, or why it ended (``Priority``, ``NonZeroExitCode``), or empty.
        nodes: A host list such as ``c[1-2]``; empty while it waits.
        start_time: Unix seconds; the expected start of a waiting job, if known.
        exit_code: None if the source does not say (accounting does, squeue never does).
        signal: The signal that killed the job's script; 0 for none.
        command: The path of the script given to sbatch; empty if it came on standard input.
    """

    id: str
    state: JobState
    reason: str = ""
    nodes: str = ""
    partition: str = ""
    work_directory: str = ""
    name: str = ""
    comment: str = ""
    start_time: float | None = None
    end_time: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A compute node, listed once however many partitions it is in.

    Attributes:
        gres: The count by name (``gpu``), all types together.
        is_usable: Whether it may run new jobs, now or when its current ones end.
    """

    name: str
    cpus: int
    memory_bytes: int
    is_usable: bool
    gres: Mapping[str, int] = field(default_factory=dict)
    partitions: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition.

    Attributes:
        max_seconds: The longest ``--time``; None for no limit.
        default_seconds: The time limit of a job that names none; None for ``max_seconds``.
    """

    name: str
    is_default: bool
    max_seconds: int | None
    default_seconds: int | None


@dataclass(frozen=True, kw_only=True)
class ClusterCapacity:
    """The cluster: its nodes and partitions, and the totals of its usable nodes."""

    cpus: int
    memory_bytes: int
    gres: Mapping[str, int]
    nodes: Mapping[str, Node]
    partitions: Mapping[str, Partition]

    @property
    def default_partition(self) -> str | None:
        """The partition of jobs that name none, if the site has one."""
        return next((name for name, partition in self.partitions.items() if partition.is_default), None)

    def candidates(self, named: Iterable[str]) -> dict[str, Partition | None]:
        """Return the partitions in which a job may run: those that it names, or the default; unknown ones are None."""
        return {name: self.partitions.get(name) for name in list(named) or [self.default_partition or ""]}
