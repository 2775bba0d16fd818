"""What becomes of a pod next: a pure function of what is known of it at one moment.

::

    WAITING ──► QUEUED ──► RUNNING ──► ENDING          docs/architecture.md says what each state means,
       │           │           │          │            and pod_workers.go has the kubelet's own
       │           └───────────┴──────────┴──► ENDED
       └──► OVER ◄──── why it ended is known ────┘
              └── the status is written ──► CLOSED ── the job has ended ──► forgotten

    GONE: from any of them, when the object is removed before the pod is over
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hpk.pods import allocations

if TYPE_CHECKING:
    from hpk import records

LINK_SILENCE_SECONDS = 60.0
"""How long an agent may be off the line, with a job that Slurm no longer knows, before its pod is lost."""
LAST_WORD_SECONDS = 3.0
"""How long after its job ended the agent's last report may still come."""
SLURM_WORD_SECONDS = 15.0
"""How long to wait for Slurm to say why it ended a job, once the agent has been signalled."""
COMPLETING_SECONDS = 300.0
"""The same for a job that Slurm says is ending: it speaks when the site's epilog is done, which may take minutes."""
END_MARGIN_SECONDS = 10.0
"""What an agent may take beyond the grace before its job is cancelled."""
YOUNG_SECONDS = 10.0
"""How long an agent that has told of itself may take to dial before it is missed."""
FORCED_GRACE_SECONDS = 1.0
END_LOOK_SECONDS = 5.0
"""After a pod's end its job should be over, too; jobs that end together are asked for together."""
LOOK_AGAIN_SECONDS = 15.0
SOON_SECONDS = 1.0
OWN_ENDS = frozenset({"Deleted", "DeadlineExceeded", "Evicted", "SetupFailed"})
"""Reasons of an agent's end that explain themselves: Slurm knows nothing better."""


class Failure(NamedTuple):
    """Why a pod cannot be had: its status's reason and message."""

    reason: str
    message: str


EXCEEDED = Failure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class State(enum.Enum):
    """Where a pod is in its life on the node."""

    WAITING = "waiting"
    """It has no job: it is being prepared, or held, or was refused for now."""
    QUEUED = "queued"
    """Its job waits in Slurm's queue."""
    RUNNING = "running"
    """Its job has a node, or nobody says otherwise."""
    ENDING = "ending"
    """It must end, and has not: its agent is asked, then its job is cancelled."""
    ENDED = "ended"
    """Nothing of it runs, as far as its agent or Slurm says; which end it was is not known yet."""
    OVER = "over"
    """It is known how it ended, or that it cannot be had: its status becomes terminal."""
    CLOSED = "closed"
    """Its status is terminal; its job is seen to its end."""
    GONE = "gone"
    """Its object was removed before it was over; whatever runs of it must end."""


class Step(enum.Enum):
    """What is done in a round."""

    WAIT = "wait"
    SUBMIT = "submit"
    CHANGE = "change"
    """Have its agent do what was changed since the pod was started."""
    TERMINATE = "terminate"
    """Ask its agent to end it; cancel its job when the grace is over."""
    RELEASE = "release"
    """Cancel its job."""
    FORGET = "forget"
    """Remove its secrets, and know nothing of it any more."""
    DISCARD = "discard"
    """Remove all its files, too."""


class Decision(NamedTuple):
    """What `decide` returns.

    Attributes:
        state: Of the pod.
        step: To be done now.
        reason: Why it must end, as `records.EndCause` names it; for `Step.TERMINATE`.
        grace_seconds: How long its containers have for that.
    """

    state: State
    step: Step
    reason: str = ""
    grace_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All that decides what becomes of a pod, at one moment; durations are in seconds.

    Attributes:
        has_object: Whether the API server has the pod.
        is_closed: Whether its phase is terminal, by our own last write or the API server's copy.
        is_written: Whether it is so in the API server's copy.
        is_deleted: Whether its deletion was asked for.
        is_removable: Whether asking for the removal of its object does any good: finalizers may hold it.
        grace_seconds: What its containers have to end in.
        deadline_left: Until activeDeadlineSeconds are over, 0 if they are; None without.
        failure: Why it cannot be had, if that is known.
        has_looked: Whether it is known that it has no other job than `allocation`.
        allocation: What Slurm says of its job, or what was learnt of its end; None without a job.
        is_explained: Whether all is known of its job's end that Slurm and the job's output tell.
        has_started: Whether its job had a node, for all we know.
        report: The agent's newest.
        is_connected: Whether the agent is on the line.
        has_dialled: Whether it ever was.
        report_age: Since the agent started, by our clock; None without a report.
        off_line_for: Since the agent was last on the line, or since there could be one.
        finished_for: Since the agent was first seen to have finished; None before.
        ended_for: Since the job was first seen to be over; None before.
        closed_for: Since the phase was first seen to be terminal, or the job was cancelled after that; None before.
    """

    has_object: bool = True
    is_closed: bool = False
    is_written: bool = False
    is_deleted: bool = False
    is_removable: bool = True
    grace_seconds: float = 30.0
    deadline_left: float | None = None
    failure: Failure | None = None
    has_looked: bool = True
    allocation: allocations.AllocationState | None = None
    is_explained: bool = False
    has_started: bool = False
    report: records.Report | None = None
    is_connected: bool = False
    has_dialled: bool = False
    report_age: float | None = None
    off_line_for: float = 0.0
    finished_for: float | None = None
    ended_for: float | None = None
    closed_for: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the agent has said that nothing of the pod runs any more."""
        return bool(self.report and self.report["finished_at"])

    @property
    def is_released(self) -> bool:
        """Whether Slurm has let go of the job, or there never was one."""
        return self.allocation is None or self.allocation.is_over

    @property
    def is_queued(self) -> bool:
        """Whether the pod has no node yet, as far as Slurm says."""
        return self.allocation is None or self.allocation.phase is allocations.Phase.QUEUED


def decide(seen: Observation) -> Decision:
    """Return the pod's state and the one step that is due."""
    state = state_of(seen)
    match state:
        case State.GONE:
            is_quiet = seen.is_released or seen.is_finished
            return Decision(state, Step.DISCARD if is_quiet else Step.TERMINATE, "Deleted", FORCED_GRACE_SECONDS)
        case State.CLOSED:
            return Decision(state, _close(seen))
        case State.ENDING:
            return Decision(state, Step.TERMINATE, why_end(seen), seen.grace_seconds)
        case State.WAITING if not seen.is_deleted:
            return Decision(state, Step.SUBMIT)
        case State.QUEUED | State.RUNNING:
            return Decision(state, Step.CHANGE)
    return Decision(state, Step.WAIT)


def state_of(seen: Observation) -> State:
    """Return the first state whose condition holds."""
    rows = (
        (State.GONE, not seen.has_object),
        (State.CLOSED, seen.is_closed),
        (State.OVER, is_over(seen)),
        (State.WAITING, seen.allocation is None),
        (State.ENDING, bool(why_end(seen))),
        (State.ENDED, seen.is_finished or (seen.is_released and not seen.is_connected)),
        (State.QUEUED, seen.is_queued and seen.report is None),
        (State.RUNNING, True),
    )
    return next(state for state, holds in rows if holds)


def _close(seen: Observation) -> Step:
    """Return the step that is due once the status is terminal."""
    if not seen.is_written:
        return Step.WAIT  # our own write has not come back yet: a worker made anew would not know of it
    if seen.is_released:
        return Step.FORGET
    return Step.RELEASE if (seen.closed_for or 0.0) > END_MARGIN_SECONDS else Step.WAIT


def removes_object(seen: Observation) -> bool:
    """Return whether the API server is to be told that nothing of a deleted pod is left."""
    return seen.is_closed and seen.is_deleted and seen.is_removable


def why_end(seen: Observation) -> str:
    """Return why the pod must end now, as `records.EndCause` names it; empty if it need not.

    An agent that is on the line though Slurm has ended its job, as where a node's slurmd has died, must end. One answer
    of Slurm's that does not name the job is no reason to end what runs.
    """
    if seen.allocation is None:
        return ""
    if seen.allocation.phase is allocations.Phase.ENDED and seen.is_connected and not seen.is_finished:
        return "Signalled"
    if seen.is_deleted:
        return "Deleted"
    return EXCEEDED.reason if seen.deadline_left == 0 and not seen.is_finished else ""


def overdue(seen: Observation) -> Failure | None:
    """Return the failure of a pod that did not start in time; the agent ends one that has started."""
    return EXCEEDED if seen.is_queued and seen.deadline_left == 0 and seen.report is None else None


def is_over(seen: Observation) -> bool:
    """Return whether nothing of the pod runs or will run, and it is known why."""
    state = seen.allocation
    if state is None:
        return seen.failure is not None or (seen.is_deleted and seen.has_looked)
    if seen.report and seen.report["finished_at"]:
        ended = seen.report["ended"]
        is_own = ended is None or ended["reason"] in OWN_ENDS
        longest = COMPLETING_SECONDS if state.is_ending and not seen.is_deleted else SLURM_WORD_SECONDS
        return is_own or state.is_over or (seen.finished_for or 0.0) > longest
    if not seen.is_explained:
        return False
    if state.phase is allocations.Phase.ENDED:
        if not seen.has_started and seen.report is None:
            return True  # it was cancelled in the queue: no agent has a last word
        # The agent may speak for as long as it takes, where it is on the line.
        patience = seen.grace_seconds + END_MARGIN_SECONDS if seen.is_connected else LAST_WORD_SECONDS
        return seen.ended_for is not None and seen.ended_for >= patience
    return state.phase is allocations.Phase.GONE and seen.off_line_for >= LINK_SILENCE_SECONDS


def look_again(seen: Observation) -> float | None:
    """Return the seconds until something may be due that no change announces; None if nothing will be."""
    if not seen.has_object:
        return LINK_SILENCE_SECONDS
    if seen.is_closed:
        return LOOK_AGAIN_SECONDS if seen.is_written else SOON_SECONDS
    waits = [seen.deadline_left] if seen.deadline_left else []
    if seen.allocation is not None:
        is_over = seen.allocation.is_over
        is_ended = seen.is_finished or seen.allocation.phase is allocations.Phase.ENDED
        if is_ended or (is_over and not seen.is_connected):
            waits.append(SOON_SECONDS)
        elif is_over or not seen.is_connected:
            waits.append(LOOK_AGAIN_SECONDS)
    return min(waits, default=None)


def question(seen: Observation) -> float | None:
    """Return within how many seconds Slurm should be asked for the job; None if nothing calls for it.

    Slurm may know better of an agent that has gone or was told to end. One that has just started is not missed: it
    tells of its first second by files and datagrams.
    """
    if seen.is_released:
        return None
    if seen.is_closed:
        return END_LOOK_SECONDS
    if seen.report is None or not seen.has_object:
        return None
    is_told = seen.is_finished and seen.report["ended"] is not None
    is_young = seen.report_age is not None and seen.report_age < YOUNG_SECONDS
    dials_soon = is_young and not seen.is_finished and not seen.has_dialled
    if not is_told and (seen.is_connected or dials_soon):
        return None
    return LOOK_AGAIN_SECONDS if (seen.finished_for or 0.0) > SLURM_WORD_SECONDS else 0.0
