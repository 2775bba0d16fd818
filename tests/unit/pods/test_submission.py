"""Exactly one job, whenever the kubelet was killed: a real allocator and poller over a Slurm in memory."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors, jobdir
from hpk.pods import submit
from hpk.slurm import model as slurm_model
from hpk.slurm import poller
from tests import background, virtual
from tests.fakes import path

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


class Slurm:
    """Takes jobs, and tells of those it has."""

    def __init__(self) -> None:
        self.jobs_by_id: dict[str, slurm_model.Job] = {}
        self.submitted = 0
        self.cancelled: list[str] = []
        self.answers: list[str] = []
        """What becomes of the next submissions: ``lost`` (made, no answer), ``late`` (made when it is looked for)."""
        self._late: list[Path] = []

    def add(self, directory: Path | str, word: str = "PENDING") -> str:
        """Have a job that works there."""
        number = str(100 + len(self.jobs_by_id) + 1)
        self.jobs_by_id[number] = slurm_model.Job(
            id=number, state=slurm_model.JobState(word), work_directory=str(directory), reason="Priority"
        )
        return number

    async def submit(self, _: str, *, directory: Path) -> str:
        self.submitted += 1
        how = self.answers.pop(0) if self.answers else "taken"
        if how == "late":
            self._late.append(directory)
        number = "" if how == "late" else self.add(directory)
        if how != "taken":
            raise errors.SlurmUnavailable("Socket timed out on send/recv operation", may_have_succeeded=True)
        return number

    async def jobs(self) -> dict[str, slurm_model.Job]:
        answer = dict(self.jobs_by_id)
        while self._late:
            self.add(self._late.pop())
        return answer

    async def cancel(self, job_id: str, **_: Any) -> None:
        self.cancelled.append(job_id)
        cancelled = slurm_model.JobState.CANCELLED
        self.jobs_by_id[job_id] = dataclasses.replace(self.jobs_by_id[job_id], state=cancelled)

    async def details(self, _: str) -> None:
        return None

    async def accounting(self, _: list[str]) -> dict[str, slurm_model.Job]:
        return {}


class World(path.World):
    """A kubelet whose allocator is the real one."""

    def __init__(self, home: Path) -> None:
        self.slurm = Slurm()
        self.asking: asyncio.Task[None] | None = None
        super().__init__(home)

    def start(self) -> None:
        """A new kubelet, which has asked Slurm nothing yet."""
        slurm: Any = self.slurm
        polling = poller.Poller(slurm, poll_seconds=15.0, clock=virtual.running().monotonic)
        self.allocator: Any = submit.JobPerPod(
            slurm,
            polling,
            state=self.state,
            on_change=lambda uid: self.pods.mark(uid),  # noqa: PLW0108 - made below
        )
        super().start()
        self.sweeping = asyncio.gather(polling.run(), self.allocator.sweep(self.pods))

    async def stop(self) -> None:
        """The kubelet is killed."""
        await background.end(self.sweeping)
        await super().stop()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Everything but Slurm, the API server and the images is real."""
    async with World(tmp_path) as made:
        yield made


def empty(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed after it had made the directory."""
    assert slurm
    jobdir.make_directory(directory.logs)


def half_a_plan(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed while it wrote the plan; a power cut may leave the name without the content, too."""
    empty(directory, slurm)
    jobdir.write_bytes(f"{directory.plan}.17.tmp", b'{"vers')
    jobdir.write_bytes(directory.plan, b"")


def planned(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed before sbatch."""
    empty(directory, slurm)
    jobdir.write_json(directory.plan, {"uid": "u", "containers": []})


def submitted(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed between sbatch and its answer."""
    planned(directory, slurm)
    slurm.add(directory.root)
    slurm.submitted += 1


def half_a_record(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed, or without power, while it wrote the number down."""
    submitted(directory, slurm)
    jobdir.write_bytes(directory.submission, b"")


def recorded(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """Killed after everything was done."""
    submitted(directory, slurm)
    jobdir.write_json(directory.submission, {"job_id": "101", "submitted_at": 1.0})


def half_a_claim(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """The agent has just made its claim, and did not come to write its number."""
    half_a_record(directory, slurm)
    jobdir.write_bytes(directory.claim, b"")


def claimed(directory: jobdir.PodDirectory, slurm: Slurm) -> None:
    """The agent runs, and the number was never written down."""
    half_a_record(directory, slurm)
    jobdir.write_bytes(directory.claim, b"101")


STEPS = [empty, half_a_plan, planned, submitted, half_a_record, recorded, half_a_claim, claimed]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
async def test_killed_at_any_step_there_is_one_job(
    world: World, step: Callable[[jobdir.PodDirectory, Slurm], None]
) -> None:
    """The next kubelet goes on from what the directory and Slurm say."""
    await world.stop()
    uid = world.create()
    step(world.state.pod(uid), world.slurm)
    await world.restart()
    await world.until(lambda: "Slurm job 101 is PENDING" in str(world.status().get("message")))
    assert (world.slurm.submitted, list(world.slurm.jobs_by_id)) == (1, ["101"])
    assert jobdir.read_json(world.state.pod(uid).submission)["job_id"] == "101"


@pytest.mark.parametrize("answers", [["lost"], ["late"]])
async def test_a_lost_answer_makes_one_job(world: World, answers: list[str]) -> None:
    """Slurm had taken it, or takes it up while it is looked for: it is found, and none is submitted beside it."""
    world.slurm.answers = list(answers)
    uid = world.create()
    await world.until(lambda: "Slurm job 101 is PENDING" in str(world.status().get("message")))
    assert (world.slurm.submitted, world.slurm.cancelled) == (1, [])
    assert jobdir.read_json(world.state.pod(uid).submission)["job_id"] == "101"


async def test_a_job_that_comes_long_after_its_answer_was_lost_is_ended(world: World) -> None:
    """The pod has its second one by then, and follows that; the first leaves the queue, and nobody else's does."""
    uid = world.create()
    await world.until(lambda: "Slurm job 101 is PENDING" in str(world.status().get("message")))
    late = world.slurm.add(world.state.pod(uid).root)
    foreign = world.slurm.add("/home/u/other/pods/" + uid)
    nobodys = world.slurm.add(world.state.pod("gone").root)
    await world.until(lambda: {late, nobodys} <= set(world.slurm.cancelled))
    assert not {"101", foreign} & set(world.slurm.cancelled)


async def test_a_deleted_pod_with_a_torn_record_goes_and_its_job_with_it(world: World) -> None:
    """It could never be deleted: its record raised in every round."""
    await world.stop()
    uid = world.create()
    half_a_record(world.state.pod(uid), world.slurm)
    await world.restart()
    await world.delete()
    await world.until(lambda: "101" in world.slurm.cancelled)
    await world.until(lambda: not world.exists())
