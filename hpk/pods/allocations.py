"""Allocations: resources that Slurm holds for pods, as values without Slurm's text formats.

An allocation is not a pod (ADR 0023). Today it is one pod's own job; only `submit` knows that.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol


class Phase(enum.Enum):
    """The phase of an allocation, as far as Slurm has reported it."""

    UNKNOWN = "unknown"
    """Slurm has not answered; this proves nothing."""
    QUEUED = "queued"
    STARTED = "started"
    """It has nodes; the agent reports what happens on them."""
    ENDED = "ended"
    GONE = "gone"
    """Slurm answered and no longer knows it (MinJobAge is over)."""


class Cause(enum.Enum):
    """Why an allocation ended."""

    FINISHED = "finished"
    """The script ended by itself; the agent's report has the details."""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    OUT_OF_MEMORY = "out of memory"
    NODE_FAILED = "node failed"
    PREEMPTED = "preempted"


OWN_FAULT = frozenset({None, Cause.FINISHED, Cause.OUT_OF_MEMORY})
"""Causes, None for an unknown one, that another pod of the same kind would meet as well."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Resources that Slurm holds, or will hold, for a pod.

    Attributes:
        job_id: The Slurm job that holds them.
        uid: The pod's, which identifies its job: a reinstalled Slurm counts its jobs from 1 again.
    """

    job_id: str
    uid: str = ""


@dataclass(frozen=True, kw_only=True)
class AllocationState:
    """Slurm's state of an allocation.

    Attributes:
        cause: Set only when it has ended.
        is_ending: Whether Slurm is ending it: the phase is still STARTED, and will be ENDED, or QUEUED again.
        state: Slurm's word, such as ``PENDING`` or ``NODE_FAIL``.
        reason: Slurm's reason, such as ``Priority`` or ``BeginTime``, or empty.
        exit_code: The job script's; None until asked for, see `Allocator.recall`.
        signal: The signal that ended the script, or Slurm's number for why it could not start; 0 for none.
        nodes: Where it ran, as Slurm's host list.
    """

    phase: Phase = Phase.UNKNOWN
    cause: Cause | None = None
    is_ending: bool = False
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    nodes: str = ""

    @property
    def is_over(self) -> bool:
        """Whether Slurm has released it."""
        return self.phase in {Phase.ENDED, Phase.GONE}


class Allocator(Protocol):
    """The provider of allocations, which alone knows how jobs and pods relate.

    Each coroutine raises errors.SlurmUnavailable if Slurm does not answer, which is not the same as None.
    """

    async def find(self, uid: str) -> Allocation | None:
        """Return the pod's allocation according to Slurm and the pod's directory, or None if it has none.

        Raises:
            errors.Retryable: The pod's directory cannot be read.
        """

    async def claimant(self, uid: str) -> Allocation | None:
        """Return the allocation whose agent has claimed the pod, and alone runs it; None without a readable claim.

        Raises:
            errors.Retryable: The claim cannot be read.
        """

    async def allocate(self, uid: str, *, script: str) -> Allocation:
        """Submit the pod's job, at most once; `find` handles a lost answer.

        Raises:
            errors.JobRefused: For good; the message is sbatch's.
        """

    async def release(self, allocation: Allocation, *, only_queued: bool = False) -> None:
        """End the allocation, or do nothing if it has ended.

        With `only_queued`, one that has started is left alone, so that its agent can keep the pod's grace.
        """

    async def ask_to_end(self, allocation: Allocation) -> None:
        """Make the pod end within its own grace although its agent is not connected."""

    async def recall(self, allocation: Allocation) -> AllocationState | None:
        """Return the final state of an allocation that is over, with its exit code; None if Slurm knows nothing.

        The site's accounting may know what slurmctld has forgotten.
        """

    def observe(self, allocation: Allocation) -> AllocationState:
        """Return Slurm's last known state, without asking."""

    def watch(self, uid: str, allocation: Allocation) -> None:
        """Mark the pod at each change of the allocation's state, until `forget`."""

    def forget(self, allocation: Allocation) -> None:
        """Stop watching the allocation."""

    def ask_soon(self, *, after_seconds: float = 0.0) -> None:
        """Query Slurm within this time, because something may have changed."""
