"""A pod's life, with real processes in place of containers: what runs when, and what the report says."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.boot import processes, runs, volumes
from hpk.agent.life import (
    container,
    execs,
    logs,
    memory,
    pod,
    podcontext,
    reaping,
    recording,
    report,
    restarts,
    running,
    starting,
)
from tests import background, virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from hpk import records

TIMEOUT = 60.0


def one(name: str, script: str, kind: str = "app", **changes: Any) -> dict[str, Any]:
    """A container that runs a shell script."""
    return {
        "name": name,
        "kind": kind,
        "argv": ["/bin/sh", "-c", script],
        "restart_policy": "Always" if kind == "sidecar" else "",
        "termination_message_policy": "File",
        "stop_signal": "",
        "tty": False,
        "stdin": False,
        **changes,
    }


class Bench:
    """A pod on the workbench."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.began: list[str] = []
        self.broken: set[str] = set()
        self.unconfigured: set[str] = set()
        self.neighbours: dict[str, str] = {}
        self.processes: dict[str, int] = {}
        self.pod: pod.PodRunner
        self.all: podcontext.PodContext
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *containers: dict[str, Any], **changes: Any) -> asyncio.Task[None]:
        """Let the pod live; the task ends with it."""
        plan: Any = {
            "uid": "u-1",
            "namespace": "ns",
            "name": "p",
            "restart_policy": "Never",
            "grace_seconds": 5,
            "deadline_at": None,
            "containers": list(containers),
            **changes,
        }
        box: Any = SimpleNamespace(
            plan=plan,
            pod_ip="127.0.0.1",
            facts=SimpleNamespace(kill_wait_seconds=30.0),
            own_tmpfs=lambda _plan: (),
            places=SimpleNamespace(pod=jobdir.PodDirectory(str(self.directory))),
        )
        loop = asyncio.get_running_loop()
        first = report.first_report(plan, job_id="7", node="n", host_ip="", pod_ip="")
        reporter = report.AgentReporter(first, path=str(self.directory / "report.json"))
        reaper = reaping.Reaper(loop)
        loop.add_signal_handler(signal.SIGCHLD, reaper.reap)
        self.all = podcontext.PodContext(box, reporter=reporter, reaper=reaper, writer=logs.Writer(loop))
        self.pod = pod.PodRunner(self.all, begun={})
        self._tasks = [asyncio.create_task(self.pod.live()), asyncio.create_task(reporter.run())]
        return self._tasks[0]

    def begin(
        self, _all: object, plan: Any, number: int, *, neighbour: runs.ContainerRun | None = None
    ) -> runs.ContainerRun | Exception:
        """In place of crun: a starter that ends at once, and the script as the container's process."""
        name = plan["name"]
        self.began.append(name)
        if neighbour:
            self.neighbours[name] = neighbour.container["name"]
        if name in self.unconfigured:
            return volumes.SubPathFailed("v", name)
        if name in self.broken:
            return OSError("no such image")
        directory = self.directory / f"{name}-{number}"
        directory.mkdir()
        run = runs.ContainerRun(plan, number, directory=str(directory), root_directory=str(directory))
        run.outputs["stdout"], theirs = os.pipe()
        environment = {"PATH": processes.PATH, "W": str(self.directory), "MESSAGE": run.message_file}
        process = processes.spawn(plan["argv"], environment=environment, files={1: theirs})
        os.close(theirs)
        run.starter = processes.spawn(["/bin/true"])
        self.processes[run.id] = process
        return run

    def launch(self, _box: object, run: runs.ContainerRun) -> None:
        """In place of the byte for crun's FIFO: the process runs already."""
        run.process_id, run.started_at = self.processes[run.id], time.time()

    def record(self, name: str) -> records.ContainerRecord:
        """What the report says of a container."""
        return self.all.reporter.report["containers"][name]

    def exit_code(self, name: str) -> int | None:
        """How a container ended."""
        terminated = self.record(name)["terminated"]
        return terminated["exit_code"] if terminated else None

    def events(self, reason: str) -> list[str]:
        """The messages of the events with this reason."""
        return [event["message"] for event in self.all.reporter.report["events"] if event["reason"] == reason]

    def log(self, name: str, number: int = 0) -> bytes:
        """A log file, as far as it is."""
        path = self.directory / f"logs/{name}/{number}.log"
        return path.read_bytes() if path.exists() else b""

    async def close(self) -> None:
        """Leave nothing behind."""
        await background.end(*self._tasks)
        self.all.writer.close()
        for process in self.processes.values():
            end(process)


def end(process: int) -> None:
    """Have a child ended and collected, if that has not come about already."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(process, os.WNOHANG) == (0, 0):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A bench whose containers are plain processes."""
    made = Bench(tmp_path)
    monkeypatch.setattr(runs, "begin", made.begin)
    monkeypatch.setattr(runs, "launch", made.launch)
    monkeypatch.setattr(runs, "clean", lambda _run: None)
    yield made
    await made.close()


async def ends(task: asyncio.Task[None]) -> None:
    """The pod ends by itself."""
    async with asyncio.timeout(TIMEOUT):
        await task


async def test_exit_codes_and_signals_are_the_process_s_own(bench: Bench) -> None:
    """0 is Completed, others Error, a signal 128 and itself; the log is complete when the end is known."""
    task = bench.start(one("a", "echo out"), one("b", "exit 3"), one("c", "kill -9 $$"), one("d", "exit 255"))
    await ends(task)
    found = {name: bench.record(name)["terminated"] for name in "abcd"}
    assert all(found.values())
    assert {n: (t["exit_code"], t["signal"], t["reason"]) for n, t in found.items() if t} == {
        "a": (0, 0, "Completed"),
        "b": (3, 0, "Error"),
        "c": (137, 9, "Error"),
        "d": (255, 0, "Error"),
    }
    assert bench.log("a").endswith(b" stdout F out\n")


async def test_init_containers_run_one_after_another_before_the_rest(bench: Bench) -> None:
    """An init container that succeeded is ready; the next begins only then."""
    task = bench.start(
        one("i", "until test -e $W/go; do sleep 0.01; done; echo i >> $W/order", "init"),
        one("j", "echo j >> $W/order", "init"),
        one("c", "cat $W/order"),
    )
    await waiting.until(lambda: bench.record("i")["state"] == "running")
    await waiting.turns()
    assert bench.began == ["i"]
    (bench.directory / "go").touch()
    await ends(task)
    assert (bench.directory / "order").read_text() == "i\nj\n"
    assert bench.began == ["i", "j", "c"]
    assert bench.record("i")["ready"]


async def test_a_failed_init_container_leaves_the_rest_waiting(bench: Bench) -> None:
    """What comes after it never starts and says PodInitializing."""
    await ends(bench.start(one("i", "exit 5", "init"), one("j", "true", "init"), one("c", "true")))
    assert bench.began == ["i"]
    assert [bench.record(name)["reason"] for name in "jc"] == ["PodInitializing", "PodInitializing"]


async def test_a_failing_init_container_is_tried_again_where_the_policy_says_so(bench: Bench) -> None:
    """OnFailure retries an init container until it succeeds."""
    task = bench.start(
        one("i", "mkdir $W/once && exit 5; exit 0", "init"), one("c", "true"), restart_policy="OnFailure"
    )
    await ends(task)
    assert bench.began == ["i", "i", "c"]
    assert bench.record("i")["restart_count"] == 1
    last = bench.record("i")["last_terminated"]
    assert last
    assert last["exit_code"] == 5


async def test_a_sidecar_starts_first_and_ends_last(bench: Bench) -> None:
    """The app begins when the sidecar runs; the sidecar gets SIGTERM when the app is done."""
    task = bench.start(
        one("s", "trap 'echo bye; exit 0' TERM; touch $W/s; while :; do sleep 0.02; done", "sidecar"),
        one("c", "until test -e $W/s; do sleep 0.01; done"),
    )
    await ends(task)
    assert bench.began == ["s", "c"]
    ended, app = bench.record("s")["terminated"], bench.record("c")["terminated"]
    assert ended
    assert app
    assert ended["exit_code"] == 0
    assert ended["finished_at"] >= app["finished_at"]
    assert b"bye" in bench.log("s")


async def test_sidecars_end_in_reverse_order(bench: Bench) -> None:
    """The last that started is the first that is told to stop."""
    script = "trap 'echo {} >> $W/order; exit 0' TERM; touch $W/{}; while :; do sleep 0.02; done"
    task = bench.start(
        one("s", script.replace("{}", "s"), "sidecar"),
        one("t", script.replace("{}", "t"), "sidecar"),
        one("c", "while [ ! -e $W/s ] || [ ! -e $W/t ]; do sleep 0.02; done"),
    )
    await ends(task)
    assert (bench.directory / "order").read_text() == "t\ns\n"


async def test_a_crash_loop_waits_with_the_kubelet_s_words(bench: Bench) -> None:
    """The first restart is immediate; before the second the state says CrashLoopBackOff, and ending it is quick."""
    task = bench.start(one("c", "exit 1"), restart_policy="Always")
    await waiting.until(lambda: bench.record("c")["reason"] == "CrashLoopBackOff")
    record = bench.record("c")
    assert record["message"] == "back-off 10s restarting failed container=c pod=p_ns(u-1)"
    assert record["restart_count"] == 1
    assert record["last_terminated"]
    assert record["last_terminated"]["exit_code"] == 1
    assert bench.events("BackOff") == ["Back-off restarting failed container c in pod p_ns(u-1)"]
    bench.pod.end("Deleted", grace_seconds=5)
    await ends(task)
    assert bench.record("c")["state"] == "terminated"


async def test_a_restarted_container_keeps_its_last_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """restart_count, last_terminated and the log's number tell the runs apart."""
    script = "echo x >> $W/n; echo run $(wc -l < $W/n); [ $(wc -l < $W/n) -gt 2 ]"
    task = bench.start(one("c", script), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["reason"] == "CrashLoopBackOff")
    virtual.pass_at_once(restarts.FIRST_SECONDS, monkeypatch)
    await ends(task)
    assert bench.record("c")["restart_count"] == 2
    assert [b"run %d" % n in bench.log("c", n - 1) for n in (1, 2, 3)] == [False, True, True]  # one dead run is kept


async def test_what_cannot_start_is_a_start_error(bench: Bench) -> None:
    """128 and StartError with the reason; others run all the same."""
    bench.broken.add("c")
    await ends(bench.start(one("c", "true"), one("d", "true")))
    found = bench.record("c")["terminated"]
    assert found
    assert (found["exit_code"], found["reason"], found["message"]) == (128, "StartError", "no such image")
    assert bench.events("Failed") == ["Error: no such image"]
    assert bench.exit_code("d") == 0


async def test_a_container_that_cannot_be_configured_waits_and_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sub path that leads out of its volume is no end: the others run, and it starts when the volume is mended."""
    bench.unconfigured = {"c", "e"}
    task = bench.start(one("c", "exit 3"), one("d", "exit 0"), one("e", "exit 0"))
    await waiting.until(lambda: bench.exit_code("d") == 0)
    for count in (2, 3):
        virtual.pass_at_once(container.CONFIGURATION_SECONDS, monkeypatch)
        await waiting.until(lambda count=count: bench.began.count("c") == bench.began.count("e") == count)  # type: ignore[misc]
    record = bench.record("c")
    assert (record["state"], record["reason"]) == ("waiting", "CreateContainerConfigError")
    assert record["message"] == 'failed to prepare subPath for volumeMount "v" of container "c"'
    assert len(bench.events("Failed")) == 2
    bench.unconfigured = {"e"}
    virtual.pass_at_once(container.CONFIGURATION_SECONDS, monkeypatch)
    await waiting.until(lambda: bench.exit_code("c") == 3)
    bench.pod.end("Deleted")
    await ends(task)
    assert bench.record("e")["state"] == "waiting"


async def test_a_fault_of_the_agent_ends_one_run_and_not_the_pod(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process does not live on unseen, its policy says what comes next, and the others go on."""
    faults, now_running = [KeyError("unforeseen")], recording.ReportRecorder.running

    def faulty(self: recording.ReportRecorder, run: runs.ContainerRun, plan: records.ContainerPlan) -> None:
        if plan["name"] == "c" and faults:
            raise faults.pop()
        now_running(self, run, plan)

    monkeypatch.setattr(recording.ReportRecorder, "running", faulty)
    first = {"c": 0}
    task = bench.start(one("c", "exec sleep 30"), one("d", "exit 0"), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    first["c"] = next(iter(bench.processes.values()))
    last = bench.record("c")["last_terminated"]
    assert last
    assert (last["exit_code"], last["reason"]) == (128, "StartError")
    assert "KeyError: 'unforeseen'" in last["message"]
    assert "Traceback" in capsys.readouterr().out
    with pytest.raises(ProcessLookupError):
        os.kill(first["c"], 0)
    await waiting.until(lambda: bench.exit_code("d") == 0)
    bench.pod.end("Deleted", grace_seconds=0)
    await ends(task)


WAIT = "trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.02; done"


async def test_a_container_over_its_memory_limit_is_killed_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """OOMKilled with 137, restarted if its policy says so; its neighbour goes on."""
    monkeypatch.setattr(
        memory.MemoryMeter, "exceeded", lambda _self, watched: [one for one in watched if one.process in over]
    )
    over: set[int] = set()
    task = bench.start(one("c", WAIT, memory_limit=100), one("d", WAIT, memory_limit=100), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["state"] == bench.record("d")["state"] == "running")
    over.add(bench.processes[bench.record("c")["container_id"]])
    virtual.pass_at_once(memory.PERIOD_SECONDS, monkeypatch)
    await waiting.until(lambda: bench.record("c")["restart_count"] == 1)
    last = bench.record("c")["last_terminated"]
    assert last
    assert (last["reason"], last["exit_code"]) == ("OOMKilled", 137)
    assert bench.record("d")["restart_count"] == 0
    bench.pod.end("Deleted")
    await ends(task)
    assert bench.exit_code("d") == 7


async def test_whom_the_kernel_killed_for_want_of_memory_is_oom_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm confines the job, the kernel may be faster; its count of kills tells what a SIGKILL was."""
    task = bench.start(one("c", WAIT), one("d", WAIT), one("e", WAIT))
    counts = {"kills": 0}
    monkeypatch.setattr(bench.all.memory.kills, "count", lambda: counts["kills"])
    await waiting.until(lambda: {bench.record(name)["state"] for name in "cde"} == {"running"})
    counts["kills"] += 1
    os.kill(bench.processes[bench.record("c")["container_id"]], signal.SIGKILL)
    await waiting.until(lambda: bench.record("c")["terminated"])
    bench.all.memory.kills.look()
    bench.all.memory.kills.look()
    os.kill(bench.processes[bench.record("d")["container_id"]], signal.SIGKILL)
    await waiting.until(lambda: bench.record("d")["terminated"])
    bench.pod.end("Deleted")
    await ends(task)
    reasons = [(found := bench.record(name)["terminated"]) and found["reason"] for name in "cde"]
    assert reasons == ["OOMKilled", "Error", "Error"]


async def test_a_kill_before_the_agent_was_ready_is_known(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container fills a small job's memory in less time than the agent takes to import asyncio."""
    counts = {"kills": 0}

    def launch(_box: object, run: runs.ContainerRun) -> None:
        bench.launch(_box, run)
        run.kills_before = counts["kills"]
        counts["kills"] += 1

    monkeypatch.setattr(runs, "launch", launch)
    task = bench.start(one("c", "kill -9 $$"))
    monkeypatch.setattr(bench.all.memory.kills, "count", lambda: counts["kills"])
    await ends(task)
    assert (ended := bench.record("c")["terminated"])
    assert ended["reason"] == "OOMKilled"


async def test_deletion_is_sigterm_and_the_reason_stays(bench: Bench) -> None:
    """The process gets its chance; a container whose policy is Always is not started again."""
    task = bench.start(one("c", WAIT), restart_policy="Always")
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Deleted", message="bye", grace_seconds=30)
    bench.pod.end("TimeLimit")
    await ends(task)
    assert bench.exit_code("c") == 7
    assert bench.all.reporter.report["ended"] == {"reason": "Deleted", "message": "bye"}
    assert bench.events("Killing") == ["Stopping container c"]
    assert bench.began == ["c"]


DEAF = "trap '' TERM; echo up; while :; do sleep 0.02; done"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that the agent has sent."""
    numbers: list[int] = []
    kill = os.kill

    def noted(process: int, number: int) -> None:
        numbers.append(number)
        kill(process, number)

    monkeypatch.setattr(os, "kill", noted)
    return numbers


async def test_a_deaf_process_is_killed_when_the_grace_is_over(
    bench: Bench, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL comes at the deadline, not before."""
    task = bench.start(one("c", DEAF))
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Deleted", grace_seconds=3000)
    await waiting.until(lambda: sent == [signal.SIGTERM])
    virtual.pass_at_once(2000, monkeypatch)
    await waiting.turns()
    assert sent == [signal.SIGTERM]
    virtual.pass_at_once(1000, monkeypatch)
    await ends(task)
    assert sent == [signal.SIGTERM, signal.SIGKILL]
    assert bench.exit_code("c") == 137


async def test_a_shorter_grace_that_comes_later_is_honoured(
    bench: Bench, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A force deletion does not wait for the grace of the deletion before it."""
    task = bench.start(one("c", DEAF))
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Deleted", grace_seconds=3000)
    await waiting.until(lambda: sent == [signal.SIGTERM])
    bench.pod.end("Deleted", grace_seconds=300)
    virtual.pass_at_once(300, monkeypatch)
    await ends(task)
    assert sent == [signal.SIGTERM, signal.SIGKILL]


async def test_a_later_longer_grace_changes_nothing(
    bench: Bench, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace can only become shorter."""
    task = bench.start(one("c", DEAF))
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Deleted", grace_seconds=300)
    bench.pod.end("Deleted", grace_seconds=3000)
    await waiting.until(lambda: sent == [signal.SIGTERM])
    virtual.pass_at_once(300, monkeypatch)
    await ends(task)
    assert sent == [signal.SIGTERM, signal.SIGKILL]


async def test_the_deadline_ends_the_pod(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """activeDeadlineSeconds is kept by the agent, in the kubelet's words."""
    task = bench.start(one("c", WAIT), deadline_at=time.time() + 1000)
    await waiting.until(lambda: bench.began)
    bench.pod.set_clock(0.0)
    virtual.pass_at_once(1000, monkeypatch)
    await ends(task)
    ended = bench.all.reporter.report["ended"]
    assert ended
    assert ended["reason"] == "DeadlineExceeded"
    assert ended["message"] == "Pod was active on the node longer than the specified deadline"


async def test_a_pod_is_evicted_for_its_disk(bench: Bench, sent: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, in the kubelet's words, as its end and as an event."""
    task = bench.start(one("c", DEAF))
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.evict("Usage of …")
    await waiting.until(lambda: sent == [signal.SIGTERM])
    virtual.pass_at_once(pod.EVICTION_SECONDS, monkeypatch)
    await ends(task)
    assert bench.all.reporter.report["ended"] == {"reason": "Evicted", "message": "Usage of …"}
    assert bench.events("Evicted") == ["Usage of …"]
    assert bench.exit_code("c") == 137


@pytest.mark.parametrize("ahead", [7200.0, -7200.0])
async def test_the_deadline_is_the_kubelet_s_whose_clock_differs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """By this node's clock it is over, or three hours away; by the kubelet's, which counts, it is an hour away."""
    monkeypatch.setattr(pod, "CLOCK_SECONDS", TIMEOUT)
    task = bench.start(one("c", WAIT), deadline_at=time.time() - ahead + 3600)
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    assert bench.all.reporter.report["ended"] is None
    assert bench.pod.set_clock(ahead)
    assert bench.all.reporter.report["clock_ahead_seconds"] == ahead
    assert not bench.pod.set_clock(ahead + 0.4)
    virtual.pass_at_once(1800, monkeypatch)
    await waiting.turns()
    assert bench.all.reporter.report["ended"] is None
    virtual.pass_at_once(1801, monkeypatch)
    await ends(task)
    ended = bench.all.reporter.report["ended"]
    assert ended
    assert ended["reason"] == "DeadlineExceeded"


async def test_the_deadline_is_kept_without_a_kubelet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """By this node's clock, after some patience."""
    task = bench.start(one("c", WAIT), deadline_at=time.time() - 100)
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    assert bench.all.reporter.report["ended"] is None
    virtual.pass_at_once(pod.CLOCK_SECONDS, monkeypatch)
    await ends(task)
    assert bench.all.reporter.report["ended"]


async def test_ending_a_pod_that_initializes_stops_the_init_container(bench: Bench) -> None:
    """And nothing after it starts."""
    task = bench.start(one("i", WAIT, "init"), one("c", "true"))
    await waiting.until(lambda: bench.record("i")["state"] == "running")
    bench.pod.end("Deleted")
    await ends(task)
    assert bench.began == ["i"]


async def test_slurm_s_kill_wait_bounds_the_grace(
    bench: Bench, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod with a long grace is killed by the agent before Slurm kills the agent, so that its end is reported."""
    task = bench.start(one("c", DEAF), grace_seconds=3000)
    bench.all.box.facts.kill_wait_seconds = 300.0
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Signalled")
    await waiting.until(lambda: sent == [signal.SIGTERM])
    virtual.pass_at_once(299, monkeypatch)
    await ends(task)
    assert bench.exit_code("c") == 137


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("SIGTERM", 15),
        ("quit", 3),
        ("9", 9),
        ("SIGRTMIN+3", 37),
        ("RTMAX-2", 62),
        *((odd, 15) for odd in ("", "0", "999", "32", "SIGRTMIN+40", "SIGRTMIN+x", "SIG_BLOCK", "TERM+1", "SIGNAL")),
    ],
)
def test_a_stop_signal_is_one_that_can_be_sent(name: str, number: int) -> None:
    """Whatever the image says: to send another would raise, and end the agent in place of the container."""
    assert running.signal_number(name) == number


async def test_the_stop_signal_is_the_container_s_own(bench: Bench) -> None:
    """An image's STOPSIGNAL takes the place of SIGTERM."""
    script = "trap 'exit 9' INT; trap 'exit 1' TERM; echo up; while :; do sleep 0.02; done"
    task = bench.start(one("c", script, stop_signal="SIGINT"))
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    await waiting.until(lambda: b"up" in bench.log("c"))
    bench.pod.end("Deleted")
    await ends(task)
    assert bench.exit_code("c") == 9


class Commands:
    """In place of exec into containers: answers by command."""

    def __init__(self, **answers: tuple[int, str]) -> None:
        self.answers = answers
        self.ran: list[str] = []

    async def execute(
        self, _all: object, _target: object, argv: list[str], *, timeout_seconds: float | None = None
    ) -> tuple[int, str]:
        """Remember and answer; a command with no answer takes for ever."""
        self.ran.append(argv[0])
        with contextlib.suppress(KeyError):
            return self.answers[argv[0]]
        async with asyncio.timeout(timeout_seconds):
            await asyncio.Event().wait()
        raise AssertionError


PERIOD, PATIENCE = 100, 10
"""Seconds of a probe."""


def probe(command: str, **numbers: Any) -> dict[str, Any]:
    """An exec probe."""
    return {"exec": {"command": [command]}, "periodSeconds": PERIOD, "timeoutSeconds": PATIENCE, **numbers}


async def test_a_container_without_probes_is_started_and_ready(bench: Bench) -> None:
    """As soon as it runs."""
    bench.start(one("c", WAIT))
    await waiting.until(lambda: bench.record("c")["ready"] and bench.record("c")["started"])


async def test_a_startup_probe_holds_back_what_comes_after(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar has started only when its startup probe says so; liveness is not asked before."""
    commands = Commands(up=(1, ""), alive=(0, ""))
    monkeypatch.setattr(execs, "execute", commands.execute)
    sidecar = one("s", WAIT, "sidecar", startup_probe=probe("up", failureThreshold=1000), liveness_probe=probe("alive"))
    task = bench.start(sidecar, one("c", "true"))
    for count in (1, 2, 3):
        await waiting.until(lambda count=count: commands.ran.count("up") == count)  # type: ignore[misc]
        virtual.pass_at_once(PERIOD, monkeypatch)
    assert bench.began == ["s"]
    assert "alive" not in commands.ran
    assert not bench.record("s")["started"]
    commands.answers["up"] = (0, "")
    virtual.pass_at_once(PERIOD, monkeypatch)
    await ends(task)
    assert bench.began == ["s", "c"]


async def test_readiness_follows_its_probe_both_ways(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an Unhealthy event in the kubelet's words, and no restart."""
    commands = Commands(ready=(1, "not yet"))
    monkeypatch.setattr(execs, "execute", commands.execute)
    bench.start(one("c", WAIT, readiness_probe=probe("ready", failureThreshold=1)))
    await waiting.until(lambda: bench.events("Unhealthy"))
    assert bench.events("Unhealthy")[0] == "Readiness probe failed: not yet"
    assert not bench.record("c")["ready"]
    commands.answers["ready"] = (0, "")
    virtual.pass_at_once(PERIOD, monkeypatch)
    await waiting.until(lambda: bench.record("c")["ready"])
    commands.answers["ready"] = (1, "")
    virtual.pass_at_once(PERIOD, monkeypatch)
    await waiting.until(lambda: not bench.record("c")["ready"])
    assert bench.record("c")["restart_count"] == 0


async def test_a_failed_liveness_probe_restarts_the_container(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many failures as the threshold says, a timeout being one."""
    commands = Commands()
    monkeypatch.setattr(execs, "execute", commands.execute)
    task = bench.start(one("c", WAIT, liveness_probe=probe("hangs", failureThreshold=2)), restart_policy="Always")
    await waiting.until(lambda: commands.ran)
    virtual.pass_at_once(PATIENCE, monkeypatch)
    await waiting.until(lambda: bench.events("Unhealthy"))
    virtual.pass_at_once(PERIOD, monkeypatch)
    await waiting.until(lambda: len(commands.ran) == 2)
    virtual.pass_at_once(PATIENCE, monkeypatch)
    await waiting.until(lambda: bench.record("c")["restart_count"] == 1)
    assert bench.events("Killing")[0] == "Container c failed liveness probe, will be restarted"
    assert len(commands.ran) >= 2
    assert "Liveness probe failed: command timed out" in bench.events("Unhealthy")[0]
    bench.pod.end("Deleted")
    await ends(task)


async def test_a_pre_stop_hook_runs_before_the_signal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that hangs costs the grace, no more."""
    commands = Commands(bye=(0, ""))
    monkeypatch.setattr(execs, "execute", commands.execute)
    monkeypatch.setattr(running, "LEAST_SECONDS", TIMEOUT)
    hook = {"preStop": {"exec": {"command": ["bye"]}}}
    task = bench.start(
        one("c", WAIT, lifecycle=hook), one("d", WAIT, lifecycle={"preStop": {"exec": {"command": ["hangs"]}}})
    )
    for name in "cd":
        await waiting.until(lambda name=name: b"up" in bench.log(name))  # type: ignore[misc]
    bench.pod.end("Deleted", grace_seconds=3000)
    await waiting.until(lambda: bench.exit_code("c") == 7)
    assert bench.record("d")["state"] == "running"
    virtual.pass_at_once(3000, monkeypatch)
    await ends(task)
    assert set(commands.ran) == {"bye", "hangs"}
    assert [bench.exit_code(name) for name in "cd"] == [7, 7]


async def test_apps_wait_for_the_post_start_hook_before_them(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet starts app containers in order, each after the hook of the one before."""
    commands = Commands()
    monkeypatch.setattr(execs, "execute", commands.execute)
    task = bench.start(one("c", WAIT, lifecycle={"postStart": {"exec": {"command": ["go"]}}}), one("d", "true"))
    await waiting.until(lambda: commands.ran)
    assert bench.began == ["c"]
    bench.pod.end("Deleted")
    await ends(task)
    assert bench.began == ["c"]


async def test_a_failed_post_start_hook_kills_the_container(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its event."""
    monkeypatch.setattr(execs, "execute", Commands(go=(1, "")).execute)
    await ends(bench.start(one("c", WAIT, lifecycle={"postStart": {"exec": {"command": ["go"]}}})))
    assert bench.events("FailedPostStartHook") == ["PostStartHook failed"]
    assert bench.record("c")["state"] == "terminated"


async def test_the_report_is_on_disk_before_anything_is_sent(bench: Bench) -> None:
    """Whoever reads the file later knows at least as much as the kubelet was told."""
    seen: list[bool] = []

    class Uplink:
        """Looks at the file when it is told."""

        def publish(self, sequence: int, data: bytes) -> None:
            """Compare."""
            seen.append((bench.directory / "report.json").read_bytes() == data and sequence > 0)

    task = bench.start(one("c", "true"))
    bench.all.reporter.attach(Uplink())
    await ends(task)
    bench.all.reporter.finish()
    await bench.all.reporter.settled(timeout_seconds=TIMEOUT)
    assert seen
    assert all(seen)
    assert jobdir.read_json(str(bench.directory / "report.json"))["finished_at"]


async def test_what_happens_is_told_however_many_events_there_were(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events alone may wait; a container's start and its pauses do not."""
    monkeypatch.setattr(report, "BURST", 0)
    states = set()

    class Uplink:
        """Sees each report that is told."""

        def publish(self, sequence: int, data: bytes) -> None:
            """Look at the container."""
            assert sequence
            record = json.loads(data)["containers"]["c"]
            states.add((record["state"], record["reason"]))

    monkeypatch.setattr(execs, "execute", Commands().execute)
    script = "until test -e $W/go; do sleep 0.01; done; exit 1"
    task = bench.start(one("c", script, startup_probe=probe("hangs", timeoutSeconds=60)), restart_policy="OnFailure")
    bench.all.reporter.attach(Uplink())
    await waiting.until(lambda: ("running", "") in states)
    (bench.directory / "go").touch()
    await waiting.until(lambda: ("waiting", "CrashLoopBackOff") in states)
    bench.pod.end("Deleted")
    await ends(task)


@pytest.fixture
def _mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image is there."""

    async def mount(_context: object, _plan: object) -> None:
        """Nothing to do."""

    monkeypatch.setattr(starting, "mount", mount)


@pytest.mark.usefixtures("_mounted")
async def test_a_container_with_a_new_image_is_restarted_with_it(bench: Bench) -> None:
    """Whatever its restart policy says, with its grace, once; and the event is the kubelet's."""
    old = one("c", "trap 'exit 3' TERM; echo old; while :; do sleep 0.01; done", image="i", image_id="1")
    task = bench.start(old)
    await waiting.until(lambda: b"old" in bench.log("c"))
    new = one("c", "echo new; until test -e $W/go; do sleep 0.01; done", image="j", image_id="2")
    bench.pod.add(new)  # type: ignore[arg-type]
    bench.pod.add(new)  # type: ignore[arg-type] # said again
    await waiting.until(lambda: b"new" in bench.log("c", 1))
    (bench.directory / "go").touch()
    await ends(task)
    record = bench.record("c")
    assert bench.log("c", 1).endswith(b"stdout F new\n")
    assert (record["image"], record["image_id"], record["restart_count"]) == ("j", "2", 1)
    assert record["last_terminated"]
    assert record["last_terminated"]["exit_code"] == 3
    assert bench.events("Killing") == ["Container c definition changed, will be restarted"]


@pytest.mark.usefixtures("_mounted")
async def test_the_stop_of_a_run_that_has_ended_spares_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preStop hook that outlives its container's process is followed by no signal to the new one."""
    hook = asyncio.Event()

    async def execute(*_: object) -> tuple[int, str]:
        """Take as long as the test wants."""
        await hook.wait()
        return 0, ""

    monkeypatch.setattr(execs, "execute", execute)
    lifecycle = {"preStop": {"exec": {"command": ["hook"]}}}
    old = "touch $W/old; until test -e $W/go; do sleep 0.01; done"
    task = bench.start(one("c", old, image="i", image_id="1", lifecycle=lifecycle), grace_seconds=600)
    await waiting.until((bench.directory / "old").exists)
    new = "trap 'exit 9' TERM; touch $W/new; until test -e $W/end; do sleep 0.01; done"
    bench.pod.add(one("c", new, image="j", image_id="2", lifecycle=lifecycle))  # type: ignore[arg-type]
    (bench.directory / "go").touch()
    await waiting.until((bench.directory / "new").exists)
    hook.set()
    await waiting.until(lambda: not bench.all._background)
    (bench.directory / "end").touch()
    await ends(task)
    assert bench.exit_code("c") == 0


@pytest.mark.usefixtures("_mounted")
async def test_a_crashing_container_with_a_new_image_does_not_wait_for_the_pause(bench: Bench) -> None:
    """The back-off was the old image's."""
    task = bench.start(one("c", "exit 1", image="i", image_id="1"), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["reason"] == "CrashLoopBackOff")
    bench.pod.add(one("c", "exit 0", image="j", image_id="2"))  # type: ignore[arg-type]
    await ends(task)
    assert bench.exit_code("c") == 0


@pytest.mark.usefixtures("_mounted")
async def test_a_running_init_container_is_not_restarted_for_a_new_image(bench: Bench) -> None:
    """Only where it starts again; and one that is over does not come back."""
    task = bench.start(
        one("i", "touch $W/up; until test -e $W/go; do sleep 0.01; done", "init", image="i", image_id="1"),
        one("c", "true", image="i", image_id="1"),
    )
    await waiting.until((bench.directory / "up").exists)
    bench.pod.add(one("i", "false", "init", image="j", image_id="2"))  # type: ignore[arg-type]
    (bench.directory / "go").touch()
    await ends(task)
    assert (bench.began, bench.exit_code("i"), bench.exit_code("c")) == (["i", "c"], 0, 0)


@pytest.fixture
def images_(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], dict[str, asyncio.Event], set[str]]:
    """The images that were mounted, in order; those whose mount waits for the test; and those that fail once."""
    mounted, held, failing = ["i"], dict[str, asyncio.Event](), set[str]()

    async def mount(_context: object, plan: Any) -> OSError | None:
        """Take as long as the test wants."""
        if plan["image"] in failing:
            failing.remove(plan["image"])
            return OSError("no process")
        if plan["image"] in held:
            await held[plan["image"]].wait()
        mounted.append(plan["image"])
        return None

    def begin(box: object, plan: Any, number: int, *, neighbour: object = None) -> runs.ContainerRun | Exception:
        """Begin by an image that is there."""
        assert neighbour is None
        if plan["image"] not in mounted:
            raise KeyError((plan["image"], 0))
        return bench.begin(box, plan, number)

    monkeypatch.setattr(starting, "mount", mount)
    monkeypatch.setattr(runs, "begin", begin)
    return mounted, held, failing


async def test_an_image_that_changes_while_another_is_mounted_begins_nothing_without_its_own(
    bench: Bench, images_: tuple[list[str], dict[str, asyncio.Event], set[str]]
) -> None:
    """The run begins by the plan whose image was mounted, and is restarted with the newest."""
    mounted, held, _ = images_
    held["j"] = asyncio.Event()
    script = "until test -e $W/go; do sleep 0.01; done"
    task = bench.start(one("c", script, image="i", image_id="1"))
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    bench.pod.add(one("c", script, image="j", image_id="2"))  # type: ignore[arg-type]
    await waiting.until(lambda: bench.record("c")["state"] == "terminated")
    bench.pod.add(one("c", "echo new; " + script, image="k", image_id="3"))  # type: ignore[arg-type]
    held["j"].set()
    await waiting.until(lambda: b"new" in bench.log("c", 2))
    (bench.directory / "go").touch()
    await ends(task)
    assert (mounted, bench.events("Failed")) == (["i", "j", "k"], [])
    assert (bench.exit_code("c"), bench.record("c")["image_id"]) == (0, "3")


async def test_an_image_that_could_not_be_mounted_is_mounted_for_the_next_run(
    bench: Bench, images_: tuple[list[str], dict[str, asyncio.Event], set[str]]
) -> None:
    """The pod may have used all processes for a moment."""
    mounted, _, failing = images_
    failing.add("j")
    task = bench.start(one("c", "exec sleep 60", image="i", image_id="1"), restart_policy="OnFailure")
    await waiting.until(lambda: bench.record("c")["state"] == "running")
    bench.pod.add(one("c", "exit 0", image="j", image_id="2"))  # type: ignore[arg-type]
    await ends(task)
    assert (mounted, bench.events("Failed")) == (["i", "j"], ["Error: no process"])
