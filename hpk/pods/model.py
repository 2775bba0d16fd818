"""What the rooms of the path hand each other: frozen, small, and with nothing of Slurm's text in it.

An allocation is not a pod.  Today each pod has one Slurm job of its own; a pool (one job, many pods), a gang
(one job for a group of pods) and an existing job fit behind the same type, and the worker does not notice.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from hpk import records
    from hpk.network import sandbox as box


class Phase(enum.Enum):
    """Where an allocation is in its life, as far as Slurm has said."""

    UNKNOWN = "unknown"
    """Slurm has not answered; nothing may be concluded."""
    QUEUED = "queued"
    STARTED = "started"
    """It has nodes; what happens on them is the agent's to tell."""
    ENDED = "ended"
    GONE = "gone"
    """Slurm answered, and does not know it any more (its MinJobAge is over)."""


class Cause(enum.Enum):
    """Why an allocation ended, where it was not the pod's own end."""

    FINISHED = "finished"
    """The script came to its own end; the agent's report says the rest."""
    CANCELLED = "cancelled"
    TIME_LIMIT = "time limit"
    OUT_OF_MEMORY = "out of memory"
    NODE_FAILED = "node failed"
    PREEMPTED = "preempted"


OWN_FAULT = frozenset({Cause.FINISHED, Cause.OUT_OF_MEMORY})
"""What another pod of the same kind would meet as well."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Where a pod runs, or will run.

    Attributes:
        job_id: The Slurm job that holds the resources.
        uid: The pod's, by which its job is known: a Slurm that was set up anew counts its jobs from 1 again.
    """

    job_id: str
    uid: str = ""


@dataclass(frozen=True, kw_only=True)
class AllocationState:
    """What Slurm says of an allocation.

    Attributes:
        phase: See Phase.
        cause: Only when it ended.
        is_ending: Whether Slurm ends it just now: the phase is still STARTED, and will be ENDED, or QUEUED again.
        state: Slurm's own word, such as ``PENDING`` or ``NODE_FAIL``.
        reason: Slurm's own reason, such as ``Priority`` or ``BeginTime``; empty if it gives none.
        exit_code: Of the job's script; None where nobody has asked, see `Allocator.recall`.
        signal: That ended the script, or Slurm's own number for why it could not be started; 0 for none.
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
        """Whether Slurm has let go of it."""
        return self.phase in {Phase.ENDED, Phase.GONE}


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """Everything that the job script is rendered from; no secret is in it.

    Attributes:
        directives: ``#SBATCH`` options without the leading dashes: name to value, None for a bare flag.
        prelude: Shell lines before anything else.
        directory: The pod's directory on the shared file system.
        sandbox: The argv that starts the agent in the sandbox; ``$`` in it is for the job's shell.
        scratch: The directory on the compute node, expanded by the job's shell.
        cleanup: The argv that removes the scratch directory with the ids that made it.
        signals: Numbers of the signals to the job's shell that the agent is to have.
        warmth: Options that the job's shell adds to ``sandbox``, if it finds what they name.
    """

    directives: dict[str, str | None]
    prelude: str
    directory: Path
    sandbox: list[str]
    scratch: str
    cleanup: list[str]
    signals: list[int]
    warmth: box.Warmth | None = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """A pod made ready to run: the two files of its directory."""

    plan: records.PodPlan
    job: JobPlan


class Allocator(Protocol):
    """Gives pods a place to run; the only part of the path that knows how jobs and pods relate."""

    async def find(self, uid: str) -> Allocation | None:
        """The allocation that carries this pod already, by what Slurm and the pod's directory say.

        Raises:
            errors.SlurmUnavailable: Slurm did not answer: not the same as None.
        """

    async def claimant(self, uid: str) -> Allocation | None:
        """The allocation whose agent has claimed the pod; it alone runs it, whatever else was submitted."""

    async def allocate(self, uid: str, *, script: str) -> Allocation:
        """Ask for a place; at most one for each pod, ever.

        Raises:
            errors.JobRefused: For good, in sbatch's own words.
            errors.SlurmUnavailable: Not now.
        """

    async def release(self, allocation: Allocation, *, only_queued: bool = False) -> None:
        """End what runs there, queued or running; fine if it ended already.

        One that is `only_queued` is left alone if it has started, so that its agent can keep the pod's grace.

        Raises:
            errors.SlurmUnavailable: Not now.
        """

    async def ask_to_end(self, allocation: Allocation) -> None:
        """Have the pod that runs there end within its own grace, though its agent cannot be told.

        Raises:
            errors.SlurmUnavailable: Not now.
        """

    async def recall(self, allocation: Allocation) -> AllocationState | None:
        """Return all that Slurm knows of one that is over, the exit code included; None if it knows nothing.

        What slurmctld has forgotten, the site's accounting may know.

        Raises:
            errors.SlurmUnavailable: No answer.
        """

    def observe(self, allocation: Allocation) -> AllocationState:
        """The newest that Slurm said; never asks."""

    def watch(self, uid: str, allocation: Allocation) -> None:
        """Tell the pod's worker of each change of the allocation's state, until `forget`."""

    def forget(self, allocation: Allocation) -> None:
        """Tell the pod's worker no more."""

    def hurry(self, *, after_seconds: float = 0.0) -> None:
        """Ask Slurm soon, or in this time: somebody has a reason to think that something changed."""
