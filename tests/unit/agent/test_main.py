"""The first milliseconds: what may be imported, what starts first, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpk import jobdir
from hpk.agent import main
from hpk.agent.boot import claim, runs, sandbox, sequence
from hpk.agent.life import requeued

ROOT = Path(__file__).parents[3]
EXPENSIVE = {
    "re",
    "contextlib",
    "enum",
    "typing",
    "dataclasses",
    "subprocess",
    "json",
    "socket",
    "asyncio",
    "shutil",
    "signal",
}


def test_nothing_expensive_is_imported_before_the_first_container() -> None:
    """Each of these modules costs every pod 3 to 150 ms."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); import hpk.agent.main; print(*sys.modules)"
    argv = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert not EXPENSIVE & set(done.stdout.split())


def container(name: str, kind: str = "app", **more: Any) -> Any:
    """As much of a container as is looked at."""
    return {"name": name, "kind": kind, **more}


@pytest.mark.parametrize(
    ("containers", "first"),
    [
        ([container("a"), container("b")], ["a", "b"]),
        ([container("i", "init"), container("a")], ["i"]),
        ([container("s", "sidecar"), container("a")], ["s"]),
        ([container("a", lifecycle={"postStart": {"sleep": {}}}), container("b")], ["a"]),
        ([container("a", lifecycle={"preStop": {"sleep": {}}}), container("b")], ["a", "b"]),
    ],
)
def test_only_what_may_run_first_runs_first(containers: list[Any], first: list[str]) -> None:
    """All apps at once, but one init container, and nothing past a postStart hook."""
    plan: Any = {"containers": containers}
    assert [one["name"] for one in sequence.first_containers(plan)] == first


@pytest.mark.parametrize(
    ("containers", "is_spared"),
    [
        ([container("a")], True),
        ([container("a", liveness_probe={"exec": {}}, lifecycle={"stopSignal": "SIGUSR1"})], True),
        ([container("a", liveness_probe={"grpc": {"port": 1}}, lifecycle=None)], True),
        ([container("a"), container("b", readiness_probe={"httpGet": {"port": 80}})], False),
        ([container("a", startup_probe={"httpGet": {"port": 80, "scheme": "HTTPS"}})], False),
        ([container("a", lifecycle={"preStop": {"httpGet": {"port": 80}}})], False),
    ],
)
def test_openssl_is_there_for_pods_whose_probes_or_hooks_speak_http(containers: list[Any], is_spared: bool) -> None:  # noqa: FBT001
    """A plain answer may lead to HTTPS."""
    plan: Any = {"containers": containers}
    assert main.spared(plan) == (("ssl", "_hashlib") if is_spared else ())


def test_the_event_loop_and_the_doorbell_do_without_openssl() -> None:
    """And what is imported later has it."""
    program = f"""
import sys
sys.path.append({str(ROOT)!r})
from hpk.agent import main
with main.missing.Without(*main.spared({{"containers": []}})):
    from hpk.agent import loop
from hpk.link import doorbell
print(bool({{"ssl", "_ssl", "_hashlib"}} & set(sys.modules)), len(doorbell.key_of(b"a", "b")))
assert doorbell._opened(doorbell._sealed(b"x", b"k"), b"k") == b"x"
import ssl
print(ssl.OPENSSL_VERSION_INFO[0] > 0)
"""
    argv = [sys.executable, "-I", "-S", "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "32", "True"]


def test_kills_are_counted_before_the_process_is_let_go(tmp_path: Path) -> None:
    """What the kernel kills from then on may be the container's."""
    run = runs.ContainerRun(container("c"), 0, directory=str(tmp_path), root_directory=str(tmp_path))
    (tmp_path / "pid").write_text("7")
    (tmp_path / run.id).mkdir()
    os.mkfifo(fifo := tmp_path / run.id / "exec.fifo")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def kills() -> int:
        with pytest.raises(BlockingIOError):
            os.read(reader, 1)
        return 3

    try:
        box: Any = SimpleNamespace(places=SimpleNamespace(runtime=str(tmp_path)), job=SimpleNamespace(kills=kills))
        runs.launch(box, run)
        assert os.read(reader, 1)
    finally:
        os.close(reader)
    assert (run.process_id, run.kills_before) == (7, 3)


def test_facts_come_from_the_job_script() -> None:
    """Empty ones have defaults: Slurm sets SLURM_RESTART_COUNT only when there is one."""
    facts = sandbox.JobFacts(["job_id=7", "restart_count=", "gpus=0,1", "host_ip=10.0.0.1", "kill_wait=5", "odd"])
    late = sandbox.JobFacts(["script_seconds=41"])
    assert (facts.job_id, facts.restart_count, facts.gpus) == ("7", 0, "0,1")
    assert (facts.kill_wait_seconds, facts.host_ip, facts.node) == (5.0, "10.0.0.1", "")
    assert (facts.script_seconds, late.script_seconds) == (0.0, 41.0)


def plan() -> Any:
    """A pod of two containers."""
    return {"uid": "u-1", "containers": [container("a"), container("b")]}


def refused(directory: Path, old: dict[str, Any] | None) -> dict[str, Any]:
    """The report after a job was restarted that had left this report."""
    places = sandbox.Places(pod=str(directory))
    if old is not None:
        jobdir.write_json(places.pod.report, old)
    assert requeued.refuse(plan(), sandbox.JobFacts(["job_id=7", "restart_count=1"]), places) == 0
    report: dict[str, Any] = json.loads((directory / "report.json").read_text())
    return report


@pytest.mark.parametrize("claimed", ["7", ""])
def test_a_restarted_job_does_not_run_its_pod_again(tmp_path: Path, claimed: str) -> None:
    """What ran is lost, and the report says so; what never ran is left as it was.  A claim may be torn."""
    running = {"state": "running", "started_at": 5.0, "container_id": "x", "ready": True, "started": True}
    old = {"sequence": 9, "finished_at": None, "ended": None, "containers": {"a": running, "b": {"state": "waiting"}}}
    (tmp_path / "claim").write_text(claimed)
    report = refused(tmp_path, old)
    assert report["sequence"] == 10
    assert report["finished_at"]
    assert report["ended"]["reason"] == "SetupFailed"
    assert report["containers"]["a"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert report["containers"]["b"] == {"state": "waiting"}


def test_a_finished_report_stays_as_it_is(tmp_path: Path) -> None:
    """A job that Slurm restarts after its pod's end changes nothing."""
    old = {"sequence": 9, "finished_at": 1.0, "containers": {}}
    assert refused(tmp_path, old) == old


def test_a_restarted_job_says_nothing_of_a_pod_that_another_runs(tmp_path: Path) -> None:
    """Of two jobs of a pod the one without the claim may be the one that is restarted."""
    claim.take(str(tmp_path / "claim"), "8")
    old: dict[str, Any] = {"sequence": 9, "finished_at": None, "containers": {}}
    assert refused(tmp_path, old) == old


def test_a_job_that_never_reported_is_refused_too(tmp_path: Path) -> None:
    """The first life may have ended before its first report."""
    assert refused(tmp_path, None)["ended"]["reason"] == "SetupFailed"
    assert (tmp_path / "claim").read_text() == "7"


LIMITED = """
import resource, sys
from hpk.agent.boot import sandbox, sequence
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 512))
plan = {"version": 0, "network": "host"}
start = sequence.begin(plan, sandbox.JobFacts([]), sandbox.Places(scratch=sys.argv[1]))
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], start.failure[0])
"""


def test_limits_are_raised_before_anything_is_started(tmp_path: Path) -> None:
    """Containers inherit them."""
    argv = [sys.executable, "-c", LIMITED, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["512", "FailedCreatePodSandBox"]
