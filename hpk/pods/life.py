"""A pod's next action, decided by a pure function of what is known of it at one moment.

::

    WAITING ──► QUEUED ──► RUNNING                     docs/architecture.md describes the states and
       │           └───────────┴──► ENDING, ENDED      draws the arrows; pod_workers.go draws the
       └──► OVER ◄──── why it ended is known ──┘       kubelet's own
              └── the status is written ──► CLOSED ── the job has ended ──► its secrets are removed

    GONE: from any of them, when the object is removed; only then are the pod's files removed
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hpk.pods import allocations

if TYPE_CHECKING:
    from hpk import records

LINK_SILENCE_SECONDS = 60.0
"""How long an agent may be disconnected, with a job that Slurm no longer knows, before its pod is lost."""
LAST_WORD_SECONDS = 3.0
"""How long the agent's last report may arrive after the end of its job."""
SLURM_WORD_SECONDS = 15.0
"""How long to wait for Slurm's reason for ending a job, once the agent has reported a signal."""
COMPLETING_SECONDS = 300.0
"""The same for a job that Slurm is ending: the reason comes after the site's epilog, which may take minutes."""
END_MARGIN_SECONDS = 10.0
"""What an agent may take beyond the grace before its job is cancelled."""
YOUNG_SECONDS = 10.0
"""How long an agent that has reported may take to dial before Slurm is asked about it."""
FORCED_GRACE_SECONDS = 1.0
END_LOOK_SECONDS = 5.0
"""When Slurm is asked whether the job of a pod that has ended is over; one query serves jobs that end together."""
LOOK_AGAIN_SECONDS = 15.0
SOON_SECONDS = 1.0
OWN_ENDS = frozenset({"Deleted", "DeadlineExceeded", "Evicted", "SetupFailed"})
"""Reasons in an agent's report that need no explanation from Slurm."""


class Failure(NamedTuple):
    """Why the kubelet failed a pod: its status's reason and message."""

    reason: str
    message: str


EXCEEDED = Failure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


class State(enum.Enum):
    """The state of a pod's life on the node."""

    WAITING = "waiting"
    """It has no job: it is being prepared, held by the gate, or was refused for now."""
    QUEUED = "queued"
    """Its job waits in Slurm's queue."""
    RUNNING = "running"
    """Its job has a node, as far as is known."""
    ENDING = "ending"
    """It must end and has not: its agent is asked, then its job is cancelled."""
    ENDED = "ended"
    """According to its agent or Slurm, nothing of it runs; why it ended is not known yet."""
    OVER = "over"
    """It is known why it ended or failed: its status becomes terminal."""
    CLOSED = "closed"
    """Its status is terminal; its job may not be over yet."""
    GONE = "gone"
    """Its object was removed: what still runs of it must end, then its files are removed."""


class Action(enum.Enum):
    """The action of a round."""

    WAIT = "wait"
    SUBMIT = "submit"
    CHANGE = "change"
    """Send its agent what was changed since the pod was started."""
    TERMINATE = "terminate"
    """Ask its agent to end it; cancel its job when the grace is over."""
    RELEASE = "release"
    """Cancel its job."""
    FORGET = "forget"
    """Remove its secrets, and forget it."""
    DISCARD = "discard"
    """Remove all its files, and forget it."""


class Decision(NamedTuple):
    """The result of `decide`.

    Attributes:
        reason: Why the pod must end, a reason of `records.EndCause`; for `Action.TERMINATE`.
        grace_seconds: How long its containers may take to end.
    """

    state: State
    action: Action
    reason: str = ""
    grace_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything that decides about a pod, at one moment; durations are in seconds.

    Attributes:
        has_object: Whether the API server has the pod.
        is_closed: Whether its phase is terminal, by our own last write or the API server's copy.
        is_written: Whether it is terminal in the API server's copy.
        is_deleted: Whether its deletion was requested.
        is_removable: Whether a request to remove its object has any effect: finalizers may hold it.
        grace_seconds: How long its containers may take to end.
        deadline_left: Until activeDeadlineSeconds are over, 0 if they are; None if it has none.
        failure: Why the kubelet failed it; None if it has not.
        has_looked: Whether it is known that the pod has no job but `allocation`.
        allocation: The state of its job according to Slurm, or to the evidence about its end; None without a job.
        is_explained: Whether that evidence, from Slurm and the job's output, is complete.
        has_started: Whether its job had a node, or may have had one.
        report: The agent's newest.
        is_connected: Whether the agent is connected.
        has_dialled: Whether it ever was.
        report_age: Since the agent started, by our clock; None without a report.
        off_line_for: Since the agent was last connected, or could first be.
        finished_for: Since the agent was first seen to have finished; None if it was not.
        ended_for: Since the job was first seen to be over; None if it was not.
        closed_for: Since the phase was first seen to be terminal, or the job was then cancelled; None if it was not.
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
        """Whether the agent has reported that nothing of the pod runs any more."""
        return bool(self.report and self.report["finished_at"])

    @property
    def is_released(self) -> bool:
        """Whether Slurm has released the job, or there never was one."""
        return self.allocation is None or self.allocation.is_over

    @property
    def is_queued(self) -> bool:
        """Whether, according to Slurm, the pod has no node yet."""
        return self.allocation is None or self.allocation.phase is allocations.Phase.QUEUED


def decide(seen: Observation) -> Decision:
    """Return the pod's state and the one action that is due."""
    state = state_of(seen)
    match state:
        case State.GONE:
            is_quiet = seen.is_released or seen.is_finished
            return Decision(state, Action.DISCARD if is_quiet else Action.TERMINATE, "Deleted", FORCED_GRACE_SECONDS)
        case State.CLOSED:
            return Decision(state, _close(seen))
        case State.ENDING:
            return Decision(state, Action.TERMINATE, why_end(seen), seen.grace_seconds)
        case State.WAITING if not seen.is_deleted:
            return Decision(state, Action.SUBMIT)
        case State.QUEUED | State.RUNNING:
            return Decision(state, Action.CHANGE)
    return Decision(state, Action.WAIT)


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


def _close(seen: Observation) -> Action:
    """Return the action that is due once the status is terminal."""
    if not seen.is_written:
        return Action.WAIT  # our own write has not come back yet, and another worker would not know of it
    if seen.is_released:
        return Action.FORGET
    return Action.RELEASE if (seen.closed_for or 0.0) > END_MARGIN_SECONDS else Action.WAIT


def removes_object(seen: Observation) -> bool:
    """Return whether a deleted pod's object is to be removed, because nothing of the pod is left."""
    return seen.is_closed and seen.is_deleted and seen.is_removable


def why_end(seen: Observation) -> str:
    """Return why the pod must end now, a reason of `records.EndCause`; empty if it need not.

    A connected agent whose job Slurm has ended, as when a node's slurmd died, must end. A single answer from Slurm that
    does not list the job is no reason to end the pod.
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
            return True  # it was cancelled in the queue, so no agent will report
        # A connected agent may take its time.
        patience = seen.grace_seconds + END_MARGIN_SECONDS if seen.is_connected else LAST_WORD_SECONDS
        return seen.ended_for is not None and seen.ended_for >= patience
    return state.phase is allocations.Phase.GONE and seen.off_line_for >= LINK_SILENCE_SECONDS


def look_again(seen: Observation) -> float | None:
    """Return the seconds until something may be due that no event announces; None if nothing will be."""
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
    """Return within how many seconds to query Slurm for the job; None if there is no reason to.

    Slurm may know why an agent disconnected or was signalled. An agent that has just started is not expected to be
    connected: it reports its first second by files and datagrams.
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
