"""The table of a pod's life: each row is what is known, and what follows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpk.pods import allocations, life
from tests.unit.pods.test_worker import report

QUEUED = allocations.AllocationState(phase=allocations.Phase.QUEUED, state="PENDING")
STARTED = allocations.AllocationState(phase=allocations.Phase.STARTED, state="RUNNING")
COMPLETING = allocations.AllocationState(phase=allocations.Phase.STARTED, is_ending=True, state="COMPLETING")
ENDED = allocations.AllocationState(phase=allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
GONE = allocations.AllocationState(phase=allocations.Phase.GONE)
UNKNOWN = allocations.AllocationState()
RUNS = report("u", 1)
FINISHED = report("u", 2, finished_at=2.0)
SIGNALLED = report("u", 2, finished_at=2.0, ended={"reason": "Signalled", "message": ""})
EVICTED = report("u", 2, finished_at=2.0, ended={"reason": "Evicted", "message": ""})
LONG = 10_000.0


def know(**known: Any) -> life.Observation:
    """Return an observation of a pod of which nothing else is known."""
    return life.Observation(**known)


ROWS = [
    # Before a job.
    (know(), "WAITING", "SUBMIT"),
    (know(is_deleted=True, has_looked=False), "WAITING", "WAIT"),
    (know(is_deleted=True), "OVER", "WAIT"),
    (know(failure=life.Failure("SubmitFailed", "")), "OVER", "WAIT"),
    # In the queue.
    (know(allocation=QUEUED), "QUEUED", "CHANGE"),
    (know(allocation=QUEUED, is_deleted=True), "ENDING", "TERMINATE"),
    (know(allocation=QUEUED, deadline_left=0.0), "ENDING", "TERMINATE"),
    (know(allocation=ENDED), "ENDED", "WAIT"),
    (know(allocation=ENDED, is_explained=True), "OVER", "WAIT"),
    # On a node.
    (know(allocation=UNKNOWN), "RUNNING", "CHANGE"),
    (know(allocation=STARTED, report=RUNS, is_connected=True), "RUNNING", "CHANGE"),
    (know(allocation=STARTED, report=RUNS, is_connected=True, deadline_left=0.0), "ENDING", "TERMINATE"),
    (know(allocation=UNKNOWN, report=RUNS, off_line_for=LONG), "RUNNING", "CHANGE"),
    (know(allocation=GONE, report=RUNS, is_connected=True, is_explained=True), "RUNNING", "CHANGE"),
    (know(allocation=GONE, report=RUNS, off_line_for=59.0, is_explained=True), "ENDED", "WAIT"),
    (know(allocation=GONE, report=RUNS, off_line_for=60.0, is_explained=True), "OVER", "WAIT"),
    (know(allocation=GONE, report=RUNS, off_line_for=60.0), "ENDED", "WAIT"),
    (know(allocation=ENDED, report=RUNS, is_connected=True), "ENDING", "TERMINATE"),
    # Its job has ended, and its agent may still speak.
    (know(allocation=ENDED, report=RUNS, has_started=True, is_explained=True, ended_for=2.9), "ENDED", "WAIT"),
    (know(allocation=ENDED, report=RUNS, has_started=True, is_explained=True, ended_for=3.0), "OVER", "WAIT"),
    # Its agent has finished, and Slurm may know why.
    (know(allocation=STARTED, report=FINISHED), "OVER", "WAIT"),
    (know(allocation=STARTED, report=EVICTED), "OVER", "WAIT"),
    (know(allocation=STARTED, report=SIGNALLED, finished_for=15.0), "ENDED", "WAIT"),
    (know(allocation=STARTED, report=SIGNALLED, finished_for=15.1), "OVER", "WAIT"),
    (know(allocation=COMPLETING, report=SIGNALLED, finished_for=300.0), "ENDED", "WAIT"),
    (know(allocation=COMPLETING, report=SIGNALLED, finished_for=15.1, is_deleted=True), "OVER", "WAIT"),
    (know(allocation=ENDED, report=SIGNALLED), "OVER", "WAIT"),
    # Its status is terminal.
    (know(is_closed=True), "CLOSED", "WAIT"),
    (know(is_closed=True, is_written=True), "CLOSED", "FORGET"),
    (know(is_closed=True, is_written=True, allocation=STARTED, closed_for=10.0), "CLOSED", "WAIT"),
    (know(is_closed=True, is_written=True, allocation=STARTED, closed_for=10.1), "CLOSED", "RELEASE"),
    # Its object is gone.
    (know(has_object=False), "GONE", "DISCARD"),
    (know(has_object=False, allocation=UNKNOWN), "GONE", "TERMINATE"),
    (know(has_object=False, allocation=STARTED, report=FINISHED), "GONE", "DISCARD"),
    (know(has_object=False, allocation=ENDED), "GONE", "DISCARD"),
]


@pytest.mark.parametrize(("seen", "state", "step"), ROWS)
def test_each_row_of_the_table(seen: life.Observation, state: str, step: str) -> None:
    """What is known decides; nothing else does."""
    decision = life.decide(seen)
    assert (decision.state.name, decision.action.name) == (state, step)


def test_the_rows_name_all_states_and_steps() -> None:
    """None is unreachable."""
    assert {row[1] for row in ROWS} == {state.name for state in life.State}
    assert {row[2] for row in ROWS} == {step.name for step in life.Action}


@pytest.mark.parametrize(
    ("known", "reason", "grace"),
    [
        ({"allocation": STARTED, "is_deleted": True, "grace_seconds": 7.0}, "Deleted", 7.0),
        ({"allocation": STARTED, "deadline_left": 0.0}, "DeadlineExceeded", 30.0),
        ({"allocation": ENDED, "is_connected": True, "is_deleted": True}, "Signalled", 30.0),
        ({"allocation": STARTED, "has_object": False}, "Deleted", life.FORCED_GRACE_SECONDS),
    ],
)
def test_a_pod_that_must_end_is_told_why(known: dict[str, Any], reason: str, grace: float) -> None:
    """The agent writes the reason into its report, and the grace is the pod's own."""
    decision = life.decide(know(**known))
    assert (decision.reason, decision.grace_seconds) == (reason, grace)


@pytest.mark.parametrize(("state", "is_overdue"), [(None, True), (QUEUED, True), (STARTED, False), (UNKNOWN, False)])
def test_a_pod_that_did_not_start_in_time_has_failed(
    state: allocations.AllocationState | None, *, is_overdue: bool
) -> None:
    """The agent ends one that has started."""
    assert (life.overdue(know(allocation=state, deadline_left=0.0)) == life.EXCEEDED) == is_overdue
    assert life.overdue(know(allocation=state, deadline_left=0.1)) is None
    assert life.overdue(know(allocation=state, deadline_left=0.0, report=RUNS)) is None


observations = st.builds(
    life.Observation,
    has_object=st.booleans(),
    is_closed=st.booleans(),
    is_written=st.booleans(),
    is_deleted=st.booleans(),
    deadline_left=st.sampled_from([None, 0.0, 5.0]),
    failure=st.sampled_from([None, life.EXCEEDED]),
    has_looked=st.booleans(),
    allocation=st.sampled_from([None, QUEUED, STARTED, COMPLETING, ENDED, GONE, UNKNOWN]),
    is_explained=st.booleans(),
    has_started=st.booleans(),
    report=st.sampled_from([None, RUNS, FINISHED, SIGNALLED]),
    is_connected=st.booleans(),
    off_line_for=st.sampled_from([0.0, LONG]),
    finished_for=st.sampled_from([None, 0.0, LONG]),
    ended_for=st.sampled_from([None, 0.0, LONG]),
    closed_for=st.sampled_from([None, 0.0, LONG]),
)


@given(observations)
def test_whatever_is_known_no_pod_is_submitted_twice_or_given_up_while_it_may_run(seen: life.Observation) -> None:
    """Nothing is lost or run twice, and a silent Slurm is no proof of anything."""
    decision = life.decide(seen)
    if decision.action is life.Action.SUBMIT:
        assert seen.allocation is None
        assert not seen.is_closed
        assert not seen.is_deleted
    if decision.state is life.State.OVER and seen.allocation in {UNKNOWN, STARTED, QUEUED}:
        assert seen.is_finished
    if decision.action in {life.Action.FORGET, life.Action.DISCARD}:
        assert seen.is_released or seen.is_finished


@given(observations)
def test_whatever_is_known_a_pod_that_cannot_stay_as_it_is_is_looked_at_again(seen: life.Observation) -> None:
    """No wait is without an end where only time can change what is decided."""
    state = life.decide(seen).state
    if state in {life.State.ENDED, life.State.CLOSED, life.State.GONE}:
        assert life.look_again(seen) is not None
