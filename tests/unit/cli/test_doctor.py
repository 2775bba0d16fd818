"""``hpk doctor``: one probe for each partition, whatever becomes of it, and nothing left behind."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from hpk import config
from hpk.cli import doctor, reach, slurmaccess
from hpk.controlplane import placement
from hpk.host import probe
from hpk.slurm import client, runner
from tests.fakes import slurm as fake
from tests.unit.cli.test_findings import GOOD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.virtual_time


class Cluster:
    """Slurm whose jobs answer, or do not."""

    def __init__(self, *partitions: str) -> None:
        self.partitions = partitions
        self.answers: dict[str, dict[str, Any]] = {}
        self.refused: dict[str, str] = {}
        self.ended: dict[str, str] = {}
        self.submitted: list[str] = []
        self.cancelled: list[str] = []
        self.scripts: list[str] = []
        self.filtered: set[str] = set()
        self.busy: list[str] = []

    async def run(self, command: str, *arguments: str, stdin: bytes = b"", **options: Any) -> runner.CommandResult:
        reply: str | runner.CommandResult = getattr(self, command)(arguments, stdin, options)
        if isinstance(reply, str):
            return runner.CommandResult(code=0, stdout=fake.marked(reply, " ".join(arguments)).encode())
        return reply

    def site(self, *_: Any) -> str:
        return json.dumps({**GOOD["site"], "hostname": "login"})

    def sbatch(self, arguments: tuple[str, ...], stdin: bytes, options: dict[str, Any]) -> str | runner.CommandResult:
        partition = next(word for word in arguments if word.startswith("--partition=")).partition("=")[2]
        if partition in self.refused:
            return fake.refusal(self.refused[partition])
        if partition in self.busy:
            self.busy.remove(partition)
            return fake.refusal(fake.OUTAGES["submit-limit"])
        self.submitted.append(partition)
        self.scripts.append(stdin.decode())
        if partition in self.answers:
            (options["directory"] / f"{partition}.json").write_text(json.dumps(self.answers[partition]))
        if partition in self.ended:
            (options["directory"] / f"{partition}.out").write_text("first\nno such command\n")
        return f"{len(self.submitted)}\n"

    def squeue(self, *_: Any) -> str:
        rows = []
        for number, partition in enumerate(self.submitted, 1):
            state = self.ended.get(partition, "PENDING")
            rows.append((str(number), state, "Priority", "", partition, "5", "N/A", "/", "(null)", "hpk-doctor", ""))
        return fake.squeue(*rows)

    def scancel(self, arguments: tuple[str, ...], *_: Any) -> str:
        self.cancelled += arguments
        return ""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster of three partitions."""
    made = Cluster("main", "gpu", "old")

    @contextlib.contextmanager
    def slurm(_: config.Settings) -> Iterator[client.Slurm]:
        one = client.Slurm(made)
        one._partitions = made.partitions
        yield one

    async def is_filtered(name: str) -> bool:
        return name in made.filtered

    monkeypatch.setattr(slurmaccess, "slurm", slurm)
    monkeypatch.setattr(reach, "is_filtered", is_filtered)
    monkeypatch.setattr(probe, "unreachable", lambda _: {})
    monkeypatch.setattr(placement, "SLOW_SYNC_SECONDS", float("inf"))  # this machine's disk may be busy
    return made


def answer(**changes: Any) -> dict[str, Any]:
    """A probe's answer."""
    return {**copy.deepcopy(GOOD), "now": time.time(), **changes}


async def test_each_partition_has_its_line(stage: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is well, one refuses, one waits; the one that waits is cancelled, and no file stays."""
    stage.answers["main"] = answer()
    stage.refused["gpu"] = "sbatch: error: Invalid account"
    assert await doctor.run(config.Settings(state=tmp_path), wait_seconds=0, is_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["warning", "ok", "note"]  # the first is this host's own
    assert "partition gpu: sbatch refuses jobs: " in lines[1]
    assert "partition old: the probe did not start within 0 s" in lines[3]
    assert stage.cancelled == ["2"]
    assert os.listdir(tmp_path) == []  # noqa: PTH208 - a test may block


@pytest.mark.parametrize(
    ("line", "expected"),
    [("#SBATCH --account=mine", ["--account=mine"]), ("#SBATCH -A mine", ["--account=mine"]), ("##SBATCH -A mine", [])],
)
def test_the_account_is_hpk_sbatchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    """As pods have it; one that is switched off counts as none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "hpk.sbatch").write_text(f"#!/bin/bash\n#SBATCH --time=1\n{line}\necho\n")
    assert doctor.account(config.Settings()) == expected
    assert doctor.account(config.Settings(account="other")) == ["--account=other"]


async def test_a_submit_limit_is_waited_out(stage: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The next probe is submitted when one has ended; with none of ours to wait for it is a finding."""
    stage.answers = {name: answer() for name in stage.partitions}
    stage.busy = ["gpu", "old"]
    await doctor.run(config.Settings(state=tmp_path), wait_seconds=9, is_json=False)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["ok"] * 4
    stage.busy = ["main"]
    await doctor.run(config.Settings(state=tmp_path), wait_seconds=9, is_json=False)
    assert "partition main: sbatch refuses jobs: sbatch: error: AssocMaxSubmitJobLimit" in capsys.readouterr().out


async def test_filtered_ports_are_told_once(stage: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the first host that shows it."""
    stage.answers = {name: answer() for name in stage.partitions}
    stage.filtered = {"c1"}
    await doctor.run(config.Settings(state=tmp_path), wait_seconds=9, is_json=False)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "cannot reach its hosts' ports" in line]
    assert line.startswith("note    partition main (c1)")


async def test_an_error_is_the_exit_code(stage: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json all that was found is a list of objects."""
    stage.partitions = ("main", "gpu")
    stage.answers["main"] = answer(sandbox={"error": "no"})
    stage.ended["gpu"] = "FAILED"
    assert await doctor.run(config.Settings(state=tmp_path), wait_seconds=9, is_json=True) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[0]["level"] in {"ok", "note"}  # this host itself, whose disk may be busy
    assert [one["level"] for one in found[1:]] == ["error", "error"]
    assert found[2]["what"] == "the probe's job ended as FAILED; its output ends with: no such command"
    assert set(found[0]) == {"level", "where", "what", "why", "who", "how"}


async def test_clock_skew_is_what_is_certain(
    stage: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An answer from the future, or from before the question."""
    stage.partitions = ("main", "gpu")
    stage.answers["main"] = answer(now=time.time() + 100)
    stage.answers["gpu"] = answer(now=time.time() - 100)
    await doctor.run(config.Settings(state=tmp_path), wait_seconds=9, is_json=False)
    told = capsys.readouterr().out
    assert "s ahead of the login" in told
    assert "s behind the login" in told


def test_the_sandbox_is_the_pods_own(tmp_path: Path) -> None:
    """The same command, with a probe in the agent's place; and the scratch directory is for the job to name."""
    command = doctor.inside(config.Settings(state=tmp_path), "flannel", tmp_path)
    assert command[:3] == ["apptainer", "--silent", "exec"]
    assert {"--fakeroot", "--net", "--no-init"} <= set(command)
    assert "type=bind,source=$HPK_SCRATCH,destination=/run/hpk/scratch" in command
    assert command[-2:] == ["-c", doctor.INSIDE]
    compile(doctor.INSIDE, "inside", "exec")
