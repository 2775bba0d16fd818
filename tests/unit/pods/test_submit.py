"""Exactly one job for each pod, whatever of its traces a kubelet before has left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from hpk import errors, jobdir
from hpk.pods import model, submit
from hpk.slurm import model as slurm_model
from hpk.slurm import poller

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UID = "0b5e1c1e-0000-4000-8000-000000000001"


class FakePoller:
    """squeue's answers."""

    def __init__(self, *jobs: slurm_model.Job) -> None:
        self.jobs = {job.id: job for job in jobs}
        self.questions = 0
        self.snapshot: Any = None

    async def fresh(self) -> Any:
        self.questions += 1
        self.snapshot = self
        return self

    def sighting(self, job_id: str, *, is_it: Callable[[slurm_model.Job], bool]) -> Any:
        found = self.jobs.get(job_id)
        if found and is_it(found):
            return poller.Sighting(job=found)
        return poller.Sighting(job=None, is_anothers=found is not None)


class Sbatch:
    """Takes what it is given."""

    async def submit(self, script: str, *, directory: Path) -> str:
        assert script
        assert directory
        return "42"


def job(job_id: str, **fields: Any) -> slurm_model.Job:
    """A job as squeue names it."""
    return slurm_model.Job(id=job_id, **{"state": slurm_model.JobState.RUNNING, **fields})


def allocator(state: jobdir.State, asked: FakePoller) -> submit.JobPerPod:
    """The allocator over what squeue says; it may not submit."""
    return submit.JobPerPod(cast("Any", None), cast("Any", asked), state=state, on_change=lambda _uid: None)


@pytest.fixture
def state(tmp_path: Path) -> jobdir.State:
    """A state directory with the pod's own in it."""
    made = jobdir.State(str(tmp_path))
    jobdir.make_directory(made.pod(UID).root)
    return made


async def test_a_full_file_system_loses_no_job(state: jobdir.State) -> None:
    """The number is written down for the next kubelet only; this one follows the job all the same."""
    jobdir.make_directory(state.pod(UID).submission)  # nothing can be renamed onto it
    made = submit.JobPerPod(cast("Any", Sbatch()), cast("Any", FakePoller()), state=state, on_change=lambda _uid: None)
    assert await made.allocate(UID, script="#!/bin/sh") == model.Allocation(job_id="42", uid=UID)


async def test_a_pod_that_was_claimed_is_adopted_after_slurm_forgot_its_job(state: jobdir.State) -> None:
    """A kubelet killed before it wrote the job down, and away for longer than MinJobAge, runs nothing twice."""
    jobdir.write_bytes(state.pod(UID).claim, b"17")
    assert await allocator(state, FakePoller()).find(UID) == model.Allocation(job_id="17", uid=UID)
    assert jobdir.read_json(state.pod(UID).submission)["job_id"] == "17"


async def test_the_claim_counts_more_than_the_answer_of_sbatch(state: jobdir.State) -> None:
    """Of two jobs, made because an answer was lost, only that runs which came first."""
    jobdir.write_json(state.pod(UID).submission, {"job_id": "18", "submitted_at": 1.0})
    jobdir.write_bytes(state.pod(UID).claim, b"17")
    assert await allocator(state, FakePoller()).find(UID) == model.Allocation(job_id="17", uid=UID)


async def test_without_a_claim_slurm_is_asked_and_the_newest_job_counts(state: jobdir.State) -> None:
    """A job is recognised by its comment, its name or its directory."""
    asked = FakePoller(job("9", comment=UID), job("10", name=UID), job("11", comment="another"))
    assert await allocator(state, asked).find(UID) == model.Allocation(job_id="10", uid=UID)
    assert jobdir.read_json(state.pod(UID).submission)["job_id"] == "10"


async def test_a_claim_without_a_name_leaves_the_answer_to_slurm(state: jobdir.State) -> None:
    """The agent was killed between making the file and writing to it."""
    jobdir.write_bytes(state.pod(UID).claim, b"")
    assert await allocator(state, FakePoller(job("5", comment=UID))).find(UID) == model.Allocation(job_id="5", uid=UID)


async def test_a_file_system_that_fails_submits_nothing(state: jobdir.State) -> None:
    """Not knowing whether the pod has run is a reason to wait."""
    jobdir.make_directory(state.pod(UID).claim)
    with pytest.raises(errors.Retryable):
        await allocator(state, FakePoller()).find(UID)


class FakeSlurm:
    """Remembers what was cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def cancel(self, job_id: str, *, only_pending: bool = False) -> None:
        assert not only_pending
        self.cancelled.append(job_id)


async def test_a_job_whose_number_is_anothers_by_now_is_left_alone(state: jobdir.State) -> None:
    """A Slurm that was set up anew counts from 1 again: the pod's own job is gone, and the other is not touched."""
    jobdir.write_json(state.pod(UID).submission, {"job_id": "17", "submitted_at": 1.0})
    asked, slurm = FakePoller(job("17", comment="another pod")), FakeSlurm()
    mine = submit.JobPerPod(cast("Any", slurm), cast("Any", asked), state=state, on_change=lambda _uid: None)
    found = await mine.find(UID)
    assert found is not None
    assert mine.observe(found).phase is model.Phase.GONE
    await mine.release(found)
    assert slurm.cancelled == []


class Slurm(FakeSlurm):
    """Has one job, of another pod, in squeue and in accounting."""

    last = job(
        "17", comment="the pod before", work_directory="/home/u/.hpk/pods/before", state=slurm_model.JobState.FAILED
    )

    async def jobs(self) -> dict[str, slurm_model.Job]:
        return {"17": self.last}

    async def accounting(self, ids: list[str]) -> dict[str, slurm_model.Job]:
        return dict.fromkeys(ids, self.last)


async def test_a_number_given_out_twice_does_not_end_the_second_pod(state: jobdir.State) -> None:
    """A slurmctld that was killed may forget its newest job: what was seen of that one says nothing of the next."""
    slurm, clock = Slurm(), iter(float(second) for second in range(1000))
    polling = poller.Poller(slurm, clock=lambda: next(clock))
    asking = asyncio.create_task(polling.run())
    await polling.fresh()
    mine = submit.JobPerPod(cast("Any", slurm), polling, state=state, on_change=lambda _uid: None)
    given = model.Allocation(job_id="17", uid=UID)
    mine.watch(UID, given)
    assert mine.observe(given).phase is model.Phase.UNKNOWN
    assert await mine.recall(given) is None
    await mine.release(given)
    assert slurm.cancelled == ["17"]
    await polling.fresh()  # and still only the other one has the number
    assert mine.observe(given).phase is model.Phase.GONE
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("word", "phase", "is_ending"),
    [("COMPLETING", model.Phase.STARTED, True), ("RUNNING", model.Phase.STARTED, False)],
)
def test_a_job_that_slurm_ends_is_known_as_such(word: str, phase: model.Phase, is_ending: bool) -> None:  # noqa: FBT001
    """It has not ended, and Slurm has yet to say why."""
    state = submit.state_of(job("7", state=slurm_model.JobState(word)))
    assert (state.phase, state.is_ending, state.is_over) == (phase, is_ending, False)
