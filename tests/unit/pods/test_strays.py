"""Which jobs are certainly no pod's, and which may not be touched."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

from hpk import errors, jobdir
from hpk.pods import allocations, strays, submit
from hpk.slurm import model as slurm_model
from hpk.slurm import poller
from tests import background, waiting
from tests.fakes import slurm as fake

if TYPE_CHECKING:
    from pathlib import Path


class Pods:
    """Which pods there are: by UID whether they are over."""

    def __init__(self, **over: bool) -> None:
        self.over = over

    def is_known(self, uid: str) -> bool:
        return uid in self.over

    def is_over(self, uid: str) -> bool:
        return self.over[uid]


@pytest.fixture
def state(tmp_path: Path) -> jobdir.StateDirectory:
    """A state directory."""
    made = jobdir.StateDirectory(str(tmp_path / "state"))
    jobdir.make_directory(made.pods)
    return made


def job(job_id: str, directory: str, word: str = "PENDING", **fields: Any) -> slurm_model.Job:
    """A job that works there."""
    return slurm_model.Job(id=job_id, state=slurm_model.JobState(word), work_directory=directory, **fields)


PENDING, RUNNING, COMPLETING, ENDED = "PENDING", "RUNNING", "COMPLETING", "COMPLETED"
CASES: dict[str, tuple[dict[str, str], dict[str, bool], str, list[str]]] = {
    # by name: states of the pod's jobs, whether the pod is over, its worker's job, and which must go
    "the pod's own": ({"1": PENDING}, {"u": False}, "1", []),
    "a second one that waits": ({"1": PENDING, "2": PENDING}, {"u": False}, "2", ["1"]),
    "beside one that runs": ({"1": PENDING, "2": RUNNING}, {"u": False}, "2", ["1"]),
    "a second one that runs leaves by the claim": ({"1": RUNNING, "2": PENDING}, {"u": False}, "2", []),
    "the pod's is not seen: any may become it": ({"1": PENDING}, {"u": False}, "2", []),
    "the pod's has ended: the pod may yet say so": ({"1": PENDING, "2": ENDED}, {"u": False}, "2", []),
    "the pod has none: it may adopt it": ({"1": PENDING, "2": PENDING}, {"u": False}, "", []),
    "the pod is over": ({"1": PENDING}, {"u": True}, "", ["1"]),
    "the pod is over, and its own job ends": ({"1": COMPLETING, "2": RUNNING}, {"u": True}, "", []),
    "the pod is over, and its job not quite": ({"1": RUNNING}, {"u": True}, "1", []),
    "the pod is gone": ({"1": PENDING}, {}, "", ["1"]),
    "the pod is gone, and the job starts into nothing": ({"1": RUNNING}, {}, "", []),
    "all has ended": ({"1": ENDED, "2": COMPLETING}, {}, "", []),
    "a state that nobody knows": ({"1": "UNKNOWN"}, {}, "", []),
}


def found(state: jobdir.StateDirectory, jobs: list[slurm_model.Job], *, pods: Pods, follows: str = "") -> list[str]:
    """The strays among these jobs, where no pod has left a directory."""
    followed = {"u": allocations.Allocation(job_id=follows, uid="u")} if follows else {}
    ours = strays.ours(jobs, places=strays.places(state))
    return [stray.job_id for stray in strays.find(ours, left=(), followed=followed, pods=pods)]


@pytest.mark.parametrize("name", CASES)
def test_only_what_is_certainly_no_pods_goes(state: jobdir.StateDirectory, name: str) -> None:
    """A lost answer's job counts against limits; but a pod's own must never be taken for one."""
    words, over, follows, gone = CASES[name]
    jobs = [job(number, f"{state.pods}/u", word) for number, word in words.items()]
    assert found(state, jobs, pods=Pods(**over), follows=follows) == gone


@pytest.mark.parametrize(
    "directory", ["/home/a/other/pods/u", "{pods}-other/u", "{pods}/u/logs", "{pods}", "/home/a", "", "u"]
)
def test_jobs_of_another_control_plane_are_none_of_ours(state: jobdir.StateDirectory, directory: str) -> None:
    """A second state directory of the same user's, or the user's own jobs, whatever they are called."""
    jobs = [job("1", directory.format(pods=state.pods), name="u", comment="u")]
    assert found(state, jobs, pods=Pods()) == []


def test_a_job_that_a_person_submitted_from_there_is_theirs(state: jobdir.StateDirectory) -> None:
    """Somebody stood in the pod's directory and called sbatch with a script."""
    jobs = [job("1", f"{state.pods}/u", command="/home/a/my.sh"), job("2_[1-3]", f"{state.pods}/u")]
    assert found(state, jobs, pods=Pods()) == []


async def test_a_pod_that_was_deleted_in_between_is_its_workers_to_end(state: jobdir.StateDirectory) -> None:
    """Its directory is there: the job is not cancelled, the worker is woken, and ends it in order."""
    jobdir.make_directory(state.pod("u").root)
    jobs = [job("1", f"{state.pods}/u", RUNNING), job("2", f"{state.pods}/v"), job("3", f"{state.pods}/w")]
    woken: list[str] = []
    cancelled: list[str] = []

    class Slurm:
        async def cancel(self, job_id: str, *, only_pending: bool) -> None:
            assert only_pending
            cancelled.append(job_id)
            if job_id == "2":
                raise errors.SlurmUnavailable("away")

    polling = poller.Poller(fake.FakeSource(jobs))
    mine = submit.JobPerPod(cast("Any", Slurm()), polling, state=state, on_change=woken.append)
    tasks = [asyncio.create_task(polling.run()), asyncio.create_task(mine.sweep(Pods()))]
    await waiting.until(lambda: len(cancelled) >= 2)
    await background.end(*tasks)
    assert (woken, cancelled) == (["u"], ["2", "3"])


async def test_a_home_that_hangs_holds_up_nothing_else(
    state: jobdir.StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is renewed, and kubectl answered, while a look takes its time; nor is any error fatal."""
    loop = threading.get_ident()
    looked: list[bool] = []

    def stat(path: object, **_: object) -> object:
        if str(path).startswith(state.pods):
            looked.append(threading.get_ident() != loop)
            raise OSError(errno.ESTALE, "Stale file handle", path)
        return real(path, **_)  # type: ignore[arg-type]

    real = os.stat
    cancelled: list[str] = []

    class Slurm:
        async def cancel(self, job_id: str, *, only_pending: bool) -> None:
            assert only_pending
            cancelled.append(job_id)

    polling = poller.Poller(fake.FakeSource([job("1", f"{state.pods}/u", RUNNING), job("2", f"{state.pods}/v")]))
    mine = submit.JobPerPod(cast("Any", Slurm()), polling, state=state, on_change=lambda _uid: None)
    monkeypatch.setattr(os, "stat", stat)
    tasks = [asyncio.create_task(polling.run()), asyncio.create_task(mine.sweep(Pods()))]
    await waiting.until(lambda: cancelled)
    monkeypatch.undo()
    assert not tasks[1].done()
    await background.end(*tasks)
    assert (cancelled, set(looked)) == (["2"], {True})
