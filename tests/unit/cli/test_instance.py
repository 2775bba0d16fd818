"""The control plane and its pods are found among all of a user's jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpk import config, jobdir
from hpk.cli import cluster, instance, status, up
from hpk.controlplane import ownership
from hpk.slurm import model


@pytest.fixture
def state(tmp_path: Path) -> jobdir.StateDirectory:
    """A state directory."""
    made = jobdir.StateDirectory(str(tmp_path))
    jobdir.make_directory(made.control_plane)
    return made


def job(
    job_id: str,
    word: str = "RUNNING",
    *,
    comment: str = "",
    directory: str = "/",
    reason: str = "",
    started_at: float | None = None,
) -> model.Job:
    """A job."""
    state = model.JobState(word)
    return model.Job(
        id=job_id, state=state, comment=comment, work_directory=directory, reason=reason, start_time=started_at
    )


def index(*jobs: model.Job) -> dict[str, model.Job]:
    """By id."""
    return {found.id: found for found in jobs}


def own(state: jobdir.StateDirectory, **fields: object) -> None:
    """Write down that job 5 holds the state, which Slurm started at 100."""
    found = {"host": "c1", "job_id": "5", "started_at": 101.0, "job_started_at": 100.0} | fields
    jobdir.write_json(f"{state.control_plane}/owner.json", found)


def test_the_owner_is_the_control_plane(state: jobdir.StateDirectory) -> None:
    """Whatever its job is called, the one that holds the state is it."""
    own(state, x=1)
    jobs = index(job("5", comment="mine", started_at=100.0), job("4", "PENDING", comment=ownership.comment(state.root)))
    assert instance.control_plane(jobs, state) == jobs["5"]
    jobs = index(job("5", comment="mine", directory=state.root))
    assert instance.control_plane(jobs, state) == jobs["5"]


@pytest.mark.parametrize(
    ("comment", "directory", "started_at"),
    [("", "/", None), ("", "/", 5000.0), ("train", "/home/a", 100_000.0), ("", "STATE", 5000.0)],
)
def test_a_number_alone_proves_nothing(
    state: jobdir.StateDirectory, comment: str, directory: str, started_at: float | None
) -> None:
    """Slurm has counted from 1 again: a job of the recorded number is the user's own work, whatever it is."""
    own(state)
    directory = state.root if directory == "STATE" else directory
    jobs = index(job("5", comment=comment, directory=directory, started_at=started_at))
    assert instance.control_plane(jobs, state) is None
    assert instance.strangers(jobs, state) == []


def test_each_directory_has_its_own(state: jobdir.StateDirectory, tmp_path: Path) -> None:
    """A job that names another directory is never ours, nor a stranger; through a link it is the same directory."""
    own(state)
    other = index(job("5", comment=ownership.comment("/home/a/b"), started_at=100.0))
    assert instance.control_plane(other, state) is None
    assert instance.strangers(other, state) == []
    (tmp_path / "link").symlink_to(state.root)
    ours = index(job("9", "PENDING", comment=ownership.comment(tmp_path / "link")))
    assert instance.control_plane(ours, state) == ours["9"]


def test_a_queued_one_is_found_by_its_comment(state: jobdir.StateDirectory) -> None:
    """Before it runs, the comment of `hpk up` tells; an owner that is over does not count."""
    own(state)
    comment = ownership.comment(state.root)
    jobs = index(job("5", "TIMEOUT"), job("12", "PENDING", comment=comment), job("3", comment="x"))
    assert instance.control_plane(jobs, state) == jobs["12"]
    assert instance.control_plane(index(job("5", "FAILED", comment=comment)), state) is None


def test_plain_sbatch_tells_no_directory_at_first(
    state: jobdir.StateDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for in the directory that it has by default, and nowhere taken for ours until it has told."""
    jobs = index(job("12", "PENDING", comment=ownership.MARK))
    settings = config.Settings(state=Path(state.root))
    assert instance.control_plane(jobs, state) is None
    assert instance.strangers(jobs, state) == [jobs["12"]]
    assert instance.expected(jobs, settings) is None
    monkeypatch.setattr(config.Settings, "state", Path(state.root))
    assert instance.expected(jobs, settings) == jobs["12"]
    own(state)
    jobs = index(job("5", comment=ownership.MARK, started_at=100.0))
    assert instance.control_plane(jobs, state) == jobs["5"]
    # Slurm has counted from 1 again, and the number is that of another directory's control plane.
    again = index(job("5", comment=ownership.MARK, started_at=5000.0))
    assert instance.control_plane(again, state) is None
    assert instance.strangers(again, state) == [again["5"]]


def test_one_that_is_ending_gives_way_to_its_successor(state: jobdir.StateDirectory) -> None:
    """Who asks for the control plane means the one that will be there, and the old one only while there is no other."""
    own(state)
    comment = ownership.comment(state.root)
    old, new = job("5", "COMPLETING", comment=comment), job("9", "PENDING", comment=comment)
    assert instance.control_plane(index(old, new), state) == new
    assert instance.control_plane(index(old), state) == old


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_a_damaged_owner_file_is_no_owner(state: jobdir.StateDirectory, text: str) -> None:
    """A file that cannot be read says nothing."""
    jobdir.write_bytes(f"{state.control_plane}/owner.json", text.encode())
    assert instance.owner(state) is None


def test_pods_are_found_by_their_directory(state: jobdir.StateDirectory) -> None:
    """A pod's job is one whose directory is a pod's, whatever its name and comment are."""
    jobs = index(
        job("1", "PENDING", directory=f"{state.pods}/uid-1"),
        job("2", "COMPLETED", directory=f"{state.pods}/uid-2"),
        job("3", directory=state.root),
        job("4", directory=f"{state.pods}-other/uid"),
        job("5", directory=f"{state.pods}/uid-5"),
    )
    assert [pod.id for pod in instance.pods(jobs, state)] == ["1", "5"]


def test_the_wait_is_explained() -> None:
    """A user who waits reads Slurm's own reason."""
    assert up.waiting(job("7", "PENDING", reason="Priority")) == "Job 7 waits in Slurm's queue (Priority)"


def test_status_without_a_control_plane() -> None:
    """Nothing runs: the user reads how to start it, and which pods' jobs are left."""
    lines = status._slurm_lines(None, [job("1", "PENDING"), job("2"), job("3")])
    assert lines == ["Control plane  not running (hpk up starts it)", "Pods' jobs     1 PENDING, 2 RUNNING"]


def test_status_of_a_cordoned_node() -> None:
    """A user whose pods wait reads why, and what ends it."""
    look = cluster.Look(url="https://a", is_ready=True, is_cordoned=True)
    node = status._cluster_lines(look, config.Settings())[1]
    assert "Ready, SchedulingDisabled: new pods wait for 'kubectl uncordon'" in node


@pytest.mark.parametrize(("seconds", "text"), [(5, "0 min"), (3700, "1 h 1 min"), (90000, "1 d 1 h"), (-5, "0 min")])
def test_spans(seconds: float, text: str) -> None:
    """Two units are enough."""
    assert status._span(seconds) == text
