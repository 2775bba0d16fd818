"""Exactly one job for each pod, whatever of its traces a kubelet before has left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from hpk import errors, jobdir
from hpk.pods import allocations, submit
from hpk.slurm import model as slurm_model
from hpk.slurm import poller
from tests import background
from tests.fakes import slurm as fake

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
        return poller.Sighting(job=found if found and is_it(found) else None)


class Sbatch:
    """Takes what it is given."""

    async def submit(self, script: str, *, directory: Path) -> str:
        assert script
        assert directory
        return "42"


DIRECTORY = f"/home/u/.hpk/pods/{UID}"


def job(job_id: str, word: str = "RUNNING", **fields: Any) -> slurm_model.Job:
    """A job as squeue names it."""
    return slurm_model.Job(id=job_id, state=slurm_model.JobState(word), **fields)


def allocator(state: jobdir.StateDirectory, asked: FakePoller) -> submit.JobPerPod:
    """The allocator over what squeue says; it may not submit."""
    return submit.JobPerPod(cast("Any", None), cast("Any", asked), state=state, on_change=lambda _uid: None)


@pytest.fixture
def state(tmp_path: Path) -> jobdir.StateDirectory:
    """A state directory with the pod's own in it."""
    made = jobdir.StateDirectory(str(tmp_path))
    jobdir.make_directory(made.pod(UID).root)
    return made


async def test_a_full_file_system_loses_no_job(state: jobdir.StateDirectory) -> None:
    """The number is written down for the next kubelet only; this one follows the job all the same."""
    jobdir.make_directory(state.pod(UID).submission)  # nothing can be renamed onto it
    made = submit.JobPerPod(cast("Any", Sbatch()), cast("Any", FakePoller()), state=state, on_change=lambda _uid: None)
    assert await made.allocate(UID, script="#!/bin/sh") == allocations.Allocation(job_id="42", uid=UID)


async def test_a_pod_that_was_claimed_is_adopted_after_slurm_forgot_its_job(state: jobdir.StateDirectory) -> None:
    """A kubelet killed before it wrote the job down, and away for longer than MinJobAge, runs nothing twice."""
    jobdir.write_bytes(state.pod(UID).claim, b"17")
    assert await allocator(state, FakePoller()).find(UID) == allocations.Allocation(job_id="17", uid=UID)
    assert jobdir.read_json(state.pod(UID).submission)["job_id"] == "17"


async def test_the_claim_counts_more_than_the_answer_of_sbatch(state: jobdir.StateDirectory) -> None:
    """Of two jobs, made because an answer was lost, only that runs which came first."""
    jobdir.write_json(state.pod(UID).submission, {"job_id": "18", "submitted_at": 1.0})
    jobdir.write_bytes(state.pod(UID).claim, b"17")
    assert await allocator(state, FakePoller()).find(UID) == allocations.Allocation(job_id="17", uid=UID)


async def test_without_a_claim_slurm_is_asked_and_the_newest_job_counts(state: jobdir.StateDirectory) -> None:
    """A job is recognised by its directory alone: anybody's comment or name may hold the UID."""
    asked = FakePoller(
        job("9", work_directory=DIRECTORY),
        job("10", work_directory=DIRECTORY),
        job("11", comment=UID, name=UID, work_directory="/home/u/.hpk/pods/another"),
        job("12", work_directory=DIRECTORY, command="/home/u/my.sh"),
    )
    assert await allocator(state, asked).find(UID) == allocations.Allocation(job_id="10", uid=UID)
    assert jobdir.read_json(state.pod(UID).submission)["job_id"] == "10"


CHOICES: dict[str, tuple[dict[str, str], str, str, str | None]] = {
    # by name: the states of the jobs in the pod's directory, the claim, the record, and the pod's job
    "nothing was submitted": ({}, "", "", None),
    "killed before the answer was written down": ({"7": "PENDING"}, "", "", "7"),
    "all is as it was": ({"7": "RUNNING"}, "7", "7", "7"),
    "forgotten by Slurm": ({}, "", "7", "7"),
    "forgotten by Slurm after it ran": ({}, "7", "", "7"),
    "the claim counts most": ({"8": "RUNNING", "7": "COMPLETED"}, "7", "8", "7"),
    "of two that wait the recorded one": ({"7": "PENDING", "8": "PENDING"}, "", "7", "7"),
    "of two that wait the newest, if none is recorded": ({"7": "PENDING", "8": "PENDING"}, "", "", "8"),
    "one that has started will claim the pod": ({"7": "RUNNING", "8": "PENDING"}, "", "8", "7"),
    "one that lives before one that is over": ({"7": "PENDING", "8": "CANCELLED"}, "", "8", "7"),
    "Slurm counts from 1 again: the number is another's": ({"3": "PENDING"}, "", "7", "3"),
    "numbers are compared as numbers": ({"9": "PENDING", "10": "PENDING"}, "", "", "10"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_which_job_is_the_pods(name: str) -> None:
    """From what the directory says, and what Slurm has in it; what others have is no pod's of ours."""
    words, claimed, recorded, chosen = CHOICES[name]
    jobs = [job(number, word, work_directory=DIRECTORY) for number, word in words.items()]
    others = [job("7" if "7" not in words else "1", comment=UID, work_directory="/home/u")]
    assert submit.chosen([*others, *jobs], uid=UID, claimed=claimed, recorded=recorded) == chosen


@pytest.mark.parametrize("torn", [b"", b'{"job_', b"[]", b"{}", b'{"job_id":7}', b'{"job_id":"-1"}', b"\0\0\0"])
async def test_a_torn_record_is_a_missing_one(state: jobdir.StateDirectory, torn: bytes) -> None:
    """A power cut left it: Slurm is asked, the job is found, and written down anew; without one there is none."""
    jobdir.write_bytes(state.pod(UID).submission, torn)
    jobdir.write_bytes(state.pod(UID).claim, b"\0\0")
    assert await allocator(state, FakePoller()).find(UID) is None
    found = await allocator(state, FakePoller(job("5", work_directory=DIRECTORY))).find(UID)
    assert found == allocations.Allocation(job_id="5", uid=UID)
    assert jobdir.read_json(state.pod(UID).submission)["job_id"] == "5"


async def test_a_claim_without_a_name_leaves_the_answer_to_slurm(state: jobdir.StateDirectory) -> None:
    """The agent was killed between making the file and writing to it."""
    jobdir.write_bytes(state.pod(UID).claim, b"")
    asked = FakePoller(job("5", work_directory=DIRECTORY))
    assert await allocator(state, asked).find(UID) == allocations.Allocation(job_id="5", uid=UID)


@pytest.mark.parametrize("record", ["claim", "submission"])
async def test_a_file_system_that_fails_submits_nothing(state: jobdir.StateDirectory, record: str) -> None:
    """Not knowing whether the pod has run is a reason to wait."""
    jobdir.make_directory(getattr(state.pod(UID), record))
    with pytest.raises(errors.Retryable):
        await allocator(state, FakePoller()).find(UID)


class FakeSlurm:
    """Remembers what was cancelled."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    async def cancel(self, job_id: str, *, signal: str | None = None, only_pending: bool = False) -> None:
        assert signal is None
        assert not only_pending
        self.cancelled.append(job_id)


@pytest.mark.parametrize("record", ["claim", "submission"])
async def test_a_job_whose_number_is_anothers_by_now_is_left_alone(state: jobdir.StateDirectory, record: str) -> None:
    """A Slurm that was set up anew counts from 1 again: the pod's own job is gone, and the other is not touched.

    With a real poller, whose first answer came before the pod's job was followed.
    """
    data = b"17" if record == "claim" else b'{"job_id":"17","submitted_at":1.0}'
    jobdir.write_bytes(getattr(state.pod(UID), record), data)
    slurm = FakeSlurm()
    polling = poller.Poller(fake.FakeSource([job("17", comment=UID, work_directory="/home/u")]))
    asking = asyncio.create_task(polling.run())
    mine = submit.JobPerPod(cast("Any", slurm), polling, state=state, on_change=lambda _uid: None)
    found = await mine.find(UID)
    assert found is not None
    await mine.release(found)  # before it is followed
    mine.watch(UID, found)
    await mine.release(found)  # before another answer
    await mine.ask_to_end(found)
    await polling.fresh()
    await mine.release(found)
    assert mine.observe(found).phase is allocations.Phase.GONE
    assert slurm.cancelled == []
    await background.end(asking)


async def test_nothing_is_cancelled_while_slurm_does_not_say_whose_it_is(state: jobdir.StateDirectory) -> None:
    """Silence is no leave to end a number."""
    source = fake.FakeSource()
    polling = poller.Poller(source, poll_seconds=0.01)
    asking = asyncio.create_task(polling.run())
    await polling.fresh()
    slurm = FakeSlurm()
    mine = submit.JobPerPod(cast("Any", slurm), polling, state=state, on_change=lambda _uid: None)
    source.error = errors.SlurmUnavailable("away")
    with pytest.raises(errors.SlurmUnavailable):
        await mine.release(allocations.Allocation(job_id="17", uid=UID))
    assert slurm.cancelled == []
    await background.end(asking)


class Slurm(FakeSlurm):
    """Has one job, of another pod, in squeue and in accounting."""

    last = job("17", "FAILED", comment="the pod before", work_directory="/home/u/.hpk/pods/before")

    async def submit(self, _: str, *, directory: Path) -> str:
        assert directory
        return "17"

    async def jobs(self) -> dict[str, slurm_model.Job]:
        return {"17": self.last}

    async def details(self, job_id: str) -> slurm_model.Job:
        assert job_id == self.last.id
        return self.last

    async def accounting(self, ids: list[str]) -> dict[str, slurm_model.Job]:
        return dict.fromkeys(ids, self.last)


async def test_a_number_given_out_twice_does_not_end_the_second_pod(state: jobdir.StateDirectory) -> None:
    """A slurmctld that was killed may forget its newest job: what was seen of that one says nothing of the next."""
    slurm, clock = Slurm(), iter(float(second) for second in range(1000))
    polling = poller.Poller(slurm, clock=lambda: next(clock))
    asking = asyncio.create_task(polling.run())
    await polling.fresh()
    mine = submit.JobPerPod(cast("Any", slurm), polling, state=state, on_change=lambda _uid: None)
    given = await mine.allocate(UID, script="#!/bin/sh")
    mine.watch(UID, given)
    assert mine.observe(given).phase is allocations.Phase.UNKNOWN
    assert await mine.recall(given) is None
    await mine.release(given)
    assert slurm.cancelled == ["17"]
    await polling.fresh()  # and still only the other one has the number
    assert mine.observe(given).phase is allocations.Phase.GONE
    await background.end(asking)


async def test_the_end_of_a_pod_leaves_another_s_job_of_the_same_number_alone(state: jobdir.StateDirectory) -> None:
    """It is watched on, and nobody takes what sbatch has just given to one for the other's."""
    slurm, woken = Slurm(), list[str]()
    source = fake.FakeSource()
    polling = poller.Poller(source, poll_seconds=0.01)
    asking = asyncio.create_task(polling.run())
    await polling.fresh()
    mine = submit.JobPerPod(cast("Any", slurm), polling, state=state, on_change=woken.append)
    before = allocations.Allocation(job_id="17", uid="before")
    mine.watch("before", before)
    given = await mine.allocate(UID, script="#!/bin/sh")
    mine.watch(UID, given)
    source.answer = [job("17", work_directory=DIRECTORY)]
    await mine.release(before)
    assert slurm.cancelled == []
    mine.forget(before)
    source.answer = []
    await polling.fresh()
    assert mine.observe(given).phase is allocations.Phase.GONE
    assert woken[-1] == UID
    await background.end(asking)


@pytest.mark.parametrize(
    ("word", "phase", "is_ending"),
    [
        ("COMPLETING", allocations.Phase.STARTED, True),
        ("RUNNING", allocations.Phase.STARTED, False),
    ],
)
def test_a_job_that_slurm_ends_is_known_as_such(word: str, phase: allocations.Phase, is_ending: bool) -> None:  # noqa: FBT001
    """It has not ended, and Slurm has yet to say why."""
    state = submit.state_of(job("7", word))
    assert (state.phase, state.is_ending, state.is_over) == (phase, is_ending, False)
