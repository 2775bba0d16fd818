"""The first process of the PID namespace that a pod's containers share."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpk.agent.boot import linux, pause, runs
from tests import waiting


def state(process: int) -> str:
    """Of /proc/PID/stat; Z too where there is none any more."""
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "Z"


def test_it_holds_nothing_and_only_sigkill_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm sends SIGTERM to every process of a job; a descriptor of the agent's would outlive its owner."""
    monkeypatch.setattr(linux, "unshare", lambda _flags: None)
    monkeypatch.setenv("SECRET", "x")
    command = pause.command
    code = (
        "import sys; sys.path.append({!r}); from hpk.agent.boot import pause as p; p._hide = lambda: None; p.rest({})"
    )
    monkeypatch.setattr(pause, "command", lambda told: [*command(told)[:-1], code.format(pause._LIBRARY, told)])
    process = pause.begin()
    directory = Path(f"/proc/{process}")
    try:
        waiting.block_until(lambda: not list((directory / "fd").iterdir()))
        waiting.block_until(lambda: state(process) == "S")
        for number in (15, 10, 2, 1):
            os.kill(process, number)
        assert state(process) == "S"
        assert (directory / "environ").read_bytes() == b""
    finally:
        os.kill(process, 9)
    waiting.block_until(lambda: state(process) == "Z")


def test_one_that_cannot_be_had_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a failure of the sandbox, not as a process id."""
    monkeypatch.setattr(linux, "unshare", lambda _flags: None)
    monkeypatch.setattr(pause, "command", lambda _told: ["/bin/false"])
    with pytest.raises(OSError, match="PID namespace that the pod's containers share"):
        pause.begin()


def test_a_run_of_such_a_pod_is_in_its_namespace(tmp_path: Path) -> None:
    """Held by descriptors, and known to leave processes behind; other pods' runs have their own."""
    plan: Any = {"name": "c"}
    run = runs.ContainerRun(plan, 0, directory=str(tmp_path), root_directory=str(tmp_path))
    box: Any = SimpleNamespace(pause=0)
    assert runs._neighbour(box, run, None) is None
    assert not run.shares_processes
    box.pause = os.getpid()
    found = runs._neighbour(box, run, None)
    assert found
    assert Path(found.processes).readlink() == Path("/proc/self/ns/pid").readlink()
    assert run.shares_processes
    for descriptor in run.held:
        os.close(descriptor)
