"""A pod's status follows from the agent's report and Slurm's word, and from nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hpk.kube import v1
from hpk.pods import allocations, compare, status

if TYPE_CHECKING:
    from hpk import records

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
T0 = NOW.timestamp()


def pod(*, policy: str = "Never", inits: tuple[str, ...] = (), apps: tuple[str, ...] = ("c",)) -> v1.Pod:
    """A pod with containers of these names."""
    spec: dict[str, Any] = {"restartPolicy": policy, "containers": [{"name": n, "image": "i"} for n in apps]}
    spec["initContainers"] = [{"name": n, "image": "i"} for n in inits]
    return v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": spec})


def ended(code: int, reason: str = "") -> records.Terminated:
    """One run that ended with this code."""
    why = reason or ("Completed" if code == 0 else "Error")
    return {
        "exit_code": code,
        "signal": 0,
        "reason": why,
        "message": "",
        "started_at": T0,
        "finished_at": T0 + 1,
        "container_id": "id",
    }


def record(state: str, *, code: int = 0, **more: Any) -> records.ContainerRecord:
    """What the agent says of one container."""
    made: dict[str, Any] = {
        "state": state,
        "reason": "",
        "message": "",
        "started_at": T0 if state == "running" else None,
        "terminated": ended(code) if state == "terminated" else None,
        "last_terminated": None,
        "restart_count": 0,
        "started": state == "running",
        "ready": state == "running",
        "container_id": "id",
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def report(containers: dict[str, records.ContainerRecord], **more: Any) -> records.Report:
    """The agent's report."""
    made: dict[str, Any] = {
        "version": 1,
        "uid": "u",
        "sequence": 1,
        "job_id": "7",
        "node": "c1",
        "host_ip": "10.0.0.1",
        "pod_ip": "10.244.0.2",
        "started_at": T0,
        "finished_at": None,
        "ended": None,
        "containers": containers,
        "events": [],
    }
    return {**made, **more}  # type: ignore[typeddict-item]


def made(one: v1.Pod, **facts: Any) -> dict[str, Any]:
    """The status of the pod with these facts."""
    return status.status(one, status.StatusInputs(started_at=NOW, job_id="7", **facts), now=NOW)


def condition(wanted: dict[str, Any], kind: str) -> tuple[str, str | None]:
    """A condition's status and reason."""
    return next((c["status"], c["reason"]) for c in wanted["conditions"] if c["type"] == kind)


def allocation(phase: allocations.Phase, **more: Any) -> allocations.AllocationState:
    """What Slurm says."""
    return allocations.AllocationState(phase=phase, **more)


def test_a_queued_job_is_a_pending_pod_with_slurms_reason() -> None:
    """Running is said only of what runs; why it waits is in the message."""
    wanted = made(pod(), allocation=allocation(allocations.Phase.QUEUED, state="PENDING", reason="Priority"))
    assert (wanted["phase"], wanted["message"]) == ("Pending", "Slurm job 7 is PENDING: Priority")
    assert wanted["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating"}}
    assert condition(wanted, "PodReadyToStartContainers")[0] == "False"


def test_a_started_job_without_a_report_is_still_pending() -> None:
    """Slurm's RUNNING says that the script runs, not that a container does."""
    assert made(pod(), allocation=allocation(allocations.Phase.STARTED, state="RUNNING"))["phase"] == "Pending"


def test_a_running_container_makes_a_running_ready_pod() -> None:
    """Phase, readiness and addresses come from the report."""
    wanted = made(pod(), report=report({"c": record("running")}))
    assert (wanted["phase"], wanted["podIP"], wanted["hostIP"]) == ("Running", "10.244.0.2", "10.0.0.1")
    assert condition(wanted, "Ready") == ("True", None)
    assert wanted["containerStatuses"][0]["containerID"] == "apptainer://id"


def test_containers_that_have_ended_do_not_end_the_pod_before_the_agent_says_so() -> None:
    """A terminal phase is final, so it waits until nothing of the pod runs."""
    wanted = made(pod(), report=report({"c": record("terminated")}))
    assert wanted["phase"] == "Running"


@pytest.mark.parametrize(("codes", "phase"), [((0, 0), "Succeeded"), ((0, 3), "Failed"), ((1, 0), "Failed")])
def test_the_final_phase_is_the_containers_exit_codes(codes: tuple[int, int], phase: str) -> None:
    """Succeeded only if every one ended with 0."""
    containers = {name: record("terminated", code=code) for name, code in zip("ab", codes, strict=True)}
    told = report(containers, finished_at=T0)
    wanted = made(pod(apps=("a", "b")), report=told, is_over=True)
    assert wanted["phase"] == phase
    assert condition(wanted, "Ready") == ("False", "PodCompleted" if phase == "Succeeded" else "PodFailed")


def test_a_program_that_exits_0_on_a_time_limit_still_fails_the_pod() -> None:
    """What Slurm cut short has not succeeded, whatever its exit code."""
    told = report({"c": record("terminated")}, finished_at=T0, ended={"reason": "Signalled", "message": ""})
    over = allocation(allocations.Phase.ENDED, cause=allocations.Cause.TIME_LIMIT, state="TIMEOUT")
    wanted = made(pod(), report=told, allocation=over, is_over=True)
    assert (wanted["phase"], wanted["reason"]) == ("Failed", "Evicted")
    assert "time limit" in wanted["message"]
    assert condition(wanted, "DisruptionTarget")[0] == "True"


def test_a_deleted_pod_ends_by_its_own_exit_codes() -> None:
    """A deletion that the program answered with 0 is a success, as with the kubelet."""
    told = report({"c": record("terminated")}, finished_at=T0, ended={"reason": "Deleted", "message": ""})
    assert made(pod(), report=told, is_over=True)["phase"] == "Succeeded"


@pytest.mark.parametrize(
    ("cause", "reason", "word"),
    [
        (allocations.Cause.CANCELLED, "Evicted", "cancelled"),
        (allocations.Cause.NODE_FAILED, "Evicted", "node failed"),
        (allocations.Cause.PREEMPTED, "Evicted", "preempted"),
        (allocations.Cause.OUT_OF_MEMORY, "OOMKilled", "memory"),
        (allocations.Cause.FINISHED, "ContainerStatusUnknown", "no record"),
    ],
)
def test_a_job_that_ends_under_a_running_container_fails_the_pod_with_the_true_reason(
    cause: allocations.Cause, reason: str, word: str
) -> None:
    """The container is lost with 137, and reason and message say what Slurm said."""
    over = allocation(allocations.Phase.ENDED, cause=cause, state="X")
    wanted = made(pod(policy="Always"), report=report({"c": record("running")}), allocation=over, is_over=True)
    assert (wanted["phase"], wanted["reason"]) == ("Failed", reason)
    assert word in wanted["message"]
    gone = wanted["containerStatuses"][0]["state"]["terminated"]
    assert gone["exitCode"] == 137
    assert gone["reason"] == ("OOMKilled" if cause is allocations.Cause.OUT_OF_MEMORY else "ContainerStatusUnknown")


@pytest.mark.parametrize(
    ("code", "phase", "reason", "container"),
    [
        (0, "Succeeded", None, "Completed"),
        (3, "Failed", None, "Error"),
        (137, "Failed", "OOMKilled", "OOMKilled"),
    ],
)
def test_slurm_remembers_a_kill_for_memory_that_the_pod_survived(
    code: int, phase: str, reason: str | None, container: str
) -> None:
    """By cgroups a job is OUT_OF_MEMORY if the kernel has killed any of its processes: a child, an earlier run."""
    out = allocation(allocations.Phase.ENDED, cause=allocations.Cause.OUT_OF_MEMORY, state="OUT_OF_MEMORY")
    told = report({"c": record("terminated", code=code)}, finished_at=T0)
    wanted = made(pod(), report=told, allocation=out, is_over=True)
    ended_as = wanted["containerStatuses"][0]["state"]["terminated"]
    assert (wanted["phase"], wanted["reason"]) == (phase, reason)
    assert (ended_as["reason"], ended_as["exitCode"]) == (container, code)


def test_a_failed_init_container_leaves_the_others_waiting() -> None:
    """Those that never started stay PodInitializing, and Initialized is False."""
    containers = {"x": record("terminated", code=5)}
    told = report(containers, finished_at=T0)
    wanted = made(pod(inits=("x", "z")), report=told, is_over=True)
    assert wanted["phase"] == "Failed"
    assert wanted["initContainerStatuses"][1]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert wanted["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert condition(wanted, "Initialized") == ("False", "ContainersNotInitialized")


def test_a_restarting_container_keeps_the_pod_running() -> None:
    """CrashLoopBackOff is a waiting state of a running pod, with the last run told."""
    again = record("waiting", reason="CrashLoopBackOff", message="back-off", last_terminated=ended(1), restart_count=1)
    wanted = made(pod(policy="Always"), report=report({"c": again}))
    assert wanted["phase"] == "Running"
    assert wanted["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert condition(wanted, "Ready") == ("False", "ContainersNotReady")


def test_a_refused_pod_is_failed_with_its_reason() -> None:
    """What the kubelet itself has failed never ran."""
    wanted = made(pod(inits=("i",)), failure=("UnsupportedField", "spec.hostPID is not supported"), is_over=True)
    assert (wanted["phase"], wanted["reason"]) == ("Failed", "UnsupportedField")
    assert wanted["containerStatuses"] is wanted["initContainerStatuses"] is None  # none seems about to start


def test_a_pod_that_was_cancelled_in_the_queue_is_evicted_with_no_container() -> None:
    """What kubectl shows is the pod's own reason."""
    over = allocation(allocations.Phase.ENDED, cause=allocations.Cause.CANCELLED, state="CANCELLED")
    wanted = made(pod(), allocation=over, is_over=True)
    assert (wanted["phase"], wanted["reason"], wanted["containerStatuses"]) == ("Failed", "Evicted", None)


def test_a_pod_whose_end_nobody_recorded_has_lost_its_containers() -> None:
    """They may have run: 137."""
    over = allocation(allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="FAILED")
    wanted = made(pod(), allocation=over, is_over=True)
    assert wanted["reason"] == "ContainerStatusUnknown"
    lost = wanted["containerStatuses"][0]["state"]["terminated"]
    assert (lost["exitCode"], lost["reason"]) == (137, "ContainerStatusUnknown")


def test_why_a_container_of_a_failed_pod_could_not_be_made_is_still_told() -> None:
    """An image that is not there, say, when the pod's time was over."""
    waiting = {"c": ("ErrImagePull", "no such tag")}
    wanted = made(pod(), failure=("DeadlineExceeded", "too long"), waiting=waiting, is_over=True)
    assert wanted["containerStatuses"][0]["state"]["waiting"]["reason"] == "ErrImagePull"


def test_an_equal_status_is_not_written_again() -> None:
    """What the API server returns of our own status counts as the same, without the fields it leaves out."""
    wanted = made(pod(), report=report({"c": record("running")}))
    stored = {key: value for key, value in wanted.items() if value is not None}
    for one in stored["conditions"]:
        for key in [key for key, value in one.items() if value is None]:
            del one[key]
    stored["conditions"] = [*stored["conditions"], {"type": "example.com/x", "status": "True"}]
    assert compare.is_reported(wanted, stored)
    stored["conditions"][2] = {**stored["conditions"][2], "status": "False"}
    assert not compare.is_reported(wanted, stored)


def test_a_condition_that_did_not_change_keeps_its_time() -> None:
    """lastTransitionTime moves only with the status."""
    before = made(pod(), report=report({"c": record("running")}))
    later = datetime(2027, 1, 1, tzinfo=UTC)
    after = status.status(
        pod(), status.StatusInputs(started_at=NOW, report=report({"c": record("running")})), now=later
    )
    merged = compare.merge_transitions(after, before)
    assert {c["lastTransitionTime"] for c in merged["conditions"]} == {status.stamp(T0)}


def test_a_terminal_phase_is_final() -> None:
    """Nothing takes a pod back from Succeeded or Failed."""
    assert not compare.may_follow({"phase": "Failed"}, {"phase": "Running"})
    assert compare.may_follow({"phase": "Failed"}, {"phase": "Failed"})
    assert compare.may_follow({"phase": "Running"}, {"phase": "Succeeded"})


def test_what_has_run_is_not_pending_again() -> None:
    """A kubelet that restarts while the report cannot be read does not take Running back."""
    unread = made(pod(), allocation=allocation(allocations.Phase.STARTED, state="RUNNING"))
    assert unread["phase"] == "Pending"
    assert not compare.may_follow({"phase": "Running"}, unread)
    assert compare.may_follow({"phase": "Pending"}, unread)


def test_a_pod_whose_job_was_requeued_says_so() -> None:
    """Its agent was told to end, and Slurm has the job in the queue again; one that only could not start is another."""
    queued = allocation(allocations.Phase.QUEUED, state="PENDING", reason="BeginTime")
    for reason, message in (
        ("Signalled", "Slurm job 7 was requeued; a pod runs only once"),
        ("SetupFailed", "no disk"),
    ):
        ended = {"reason": reason, "message": "no disk"}
        told = report({"c": record("terminated")}, finished_at=T0, ended=ended)
        wanted = made(pod(), report=told, allocation=queued, is_over=True)
        assert (wanted["phase"], wanted["message"]) == ("Failed", message)


def test_ephemeral_containers_are_told_and_change_nothing_else() -> None:
    """Waiting with their own reason, running, or failed: phase and conditions are those of the pod without them."""
    bare = pod(inits=("i",))
    extra = [v1.EphemeralContainer(name=name, image="e") for name in ("d", "w")]
    one = msgspec.structs.replace(bare, spec=msgspec.structs.replace(bare.spec, ephemeral_containers=extra))
    records_ = {"i": record("terminated"), "c": record("terminated"), "d": record("terminated", code=5, image_id="e@1")}
    facts = status.StatusInputs(
        started_at=NOW,
        report=report(records_, finished_at=T0 + 2),
        is_over=True,
        waiting={"w": ("CreateContainerError", "why")},
    )
    made = status.status(one, facts, now=NOW)
    failed, waits = made.pop("ephemeralContainerStatuses")
    assert (failed["state"]["terminated"]["exitCode"], failed["imageID"], failed["ready"]) == (5, "e@1", False)
    assert waits["state"] == {"waiting": {"reason": "CreateContainerError", "message": "why"}}
    plain = status.status(bare, facts, now=NOW)
    assert plain.pop("ephemeralContainerStatuses") is None
    assert made == plain
    assert made["phase"] == "Succeeded"


def test_an_ephemeral_container_does_not_wait_for_init_containers() -> None:
    """So it does not say that it does."""
    bare = pod(inits=("i",))
    spec = msgspec.structs.replace(bare.spec, ephemeral_containers=[v1.EphemeralContainer(name="d")])
    facts = status.StatusInputs(started_at=NOW, report=report({"i": record("running"), "c": record("waiting")}))
    (made,) = status.status(msgspec.structs.replace(bare, spec=spec), facts, now=NOW)["ephemeralContainerStatuses"]
    assert made["state"]["waiting"]["reason"] == "ContainerCreating"


def test_a_pod_that_took_too_much_of_the_disk_says_so() -> None:
    """Evicted in the agent's words, and no disruption: nobody but the pod is to blame."""
    told = report(
        {"c": record("terminated", code=137)}, finished_at=T0, ended={"reason": "Evicted", "message": "Usage of …"}
    )
    wanted = made(pod(), report=told, allocation=allocation(allocations.Phase.STARTED), is_over=True)
    assert (wanted["phase"], wanted["reason"], wanted["message"]) == ("Failed", "Evicted", "Usage of …")
    assert "DisruptionTarget" not in {c["type"] for c in wanted["conditions"]}


def gated(*conditions: dict[str, str]) -> v1.Pod:
    """A pod with a readiness gate, and these conditions that others have set."""
    raw = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "status": {"conditions": list(conditions)}}
    spec = {"containers": [{"name": "c"}], "readinessGates": [{"conditionType": "example.com/lb"}]}
    return v1.pod({**raw, "spec": spec})


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([], 'corresponding condition of pod readiness gate "example.com/lb" does not exist.'),
        (
            [{"type": "example.com/lb", "status": "False"}],
            'the status of pod readiness gate "example.com/lb" is not "True", but False',
        ),
        ([{"type": "example.com/lb", "status": "True"}], None),
    ],
)
def test_a_pod_is_ready_when_its_readiness_gates_are(conditions: list[dict[str, str]], message: str | None) -> None:
    """Its containers being ready is one thing, the conditions that others set another."""
    wanted = made(gated(*conditions), report=report({"c": record("running")}))
    assert condition(wanted, "ContainersReady") == ("True", None)
    assert condition(wanted, "Ready") == (("False", "ReadinessGatesNotReady") if message else ("True", None))
    assert next(c["message"] for c in wanted["conditions"] if c["type"] == "Ready") == message


def test_a_closed_gate_says_nothing_of_a_pod_whose_containers_are_not_ready() -> None:
    """The containers come first, as with the kubelet."""
    wanted = made(gated(), report=report({"c": record("running", ready=False)}))
    assert condition(wanted, "Ready") == ("False", "ContainersNotReady")


def test_all_containers_of_a_pod_with_init_containers_wait_as_initializing() -> None:
    """The first one too."""
    wanted = made(pod(inits=("i", "j")), allocation=allocation(allocations.Phase.QUEUED))
    states = [s["state"] for s in (*wanted["initContainerStatuses"], *wanted["containerStatuses"])]
    assert states == [{"waiting": {"reason": "PodInitializing"}}] * 3


@pytest.mark.parametrize("is_over", [False, True])
def test_an_init_container_that_succeeded_is_ready(*, is_over: bool) -> None:
    """Also when the pod is over: readers of a finished pod look at it."""
    containers = {"i": record("terminated", ready=True), "j": record("terminated", code=1), "c": record("terminated")}
    told = report(containers, finished_at=T0 if is_over else None)
    first, second = made(pod(inits=("i", "j")), report=told, is_over=is_over)["initContainerStatuses"]
    assert (first["ready"], second["ready"]) == (True, False)


@pytest.mark.parametrize(
    ("before", "after", "is_legal"),
    [
        (record("waiting"), record("running"), True),
        (record("running"), record("waiting"), False),
        (record("running"), record("terminated", code=1), True),
        (record("terminated", code=1), record("running"), False),
        (record("terminated", code=1), record("running", restart_count=1), True),
        (record("terminated", code=1), record("waiting", last_terminated=ended(1)), True),
        (record("waiting", last_terminated=ended(1)), record("terminated", code=1), True),
        (record("waiting", last_terminated=ended(1)), record("running"), False),
        (record("running", restart_count=2), record("terminated", code=1, restart_count=1), False),
    ],
)
def test_no_container_goes_back(
    before: records.ContainerRecord, after: records.ContainerRecord, *, is_legal: bool
) -> None:
    """As the kubelet's status manager refuses it: what a run has come to is not taken back."""
    one = pod(policy="Always", apps=("a", "c"))
    others = {"a": record("running")}
    was, would = (made(one, report=report({**others, "c": this})) for this in (before, after))
    was["phase"] = would["phase"] = "Running"
    assert compare.may_follow(was, would) is is_legal
    over = made(one, report=report({**others, "c": after}, finished_at=T0), is_over=True)
    assert compare.may_follow(was, over)


@pytest.mark.parametrize(("apps", "inits", "most"), [(("a", "b", "c", "d", "e"), ("i",), 2048), (("a",), (), 4096)])
def test_all_termination_messages_of_a_pod_have_12_kib(
    apps: tuple[str, ...], inits: tuple[str, ...], most: int
) -> None:
    """In equal parts, of which the beginning is kept, in whole characters; one container has what the agent told."""
    long = ended(1) | {"message": "BEGIN" + "é" * 2045 + "x"}
    told = {name: record("terminated") | {"terminated": long, "last_terminated": long} for name in (*apps, *inits)}
    wanted = made(pod(apps=apps, inits=inits), report=report(told))
    for one in (*wanted["containerStatuses"], *(wanted["initContainerStatuses"] or ())):
        for state in ("state", "lastState"):
            text = one[state]["terminated"]["message"]
            assert text.startswith("BEGINé")
            assert most - 1 <= len(text.encode()) <= most


ENDS: list[tuple[dict[str, Any], str]] = [
    ({}, "Slurm job 7 ended and left no record of the pod's end"),
    (
        {"exit_code": 137, "signal": 0, "reason": "NonZeroExitCode"},
        "Slurm job 7 ended (FAILED, exit code 137:0) and left no record of the pod's end",
    ),
    (
        {"exit_code": 0, "signal": 9, "reason": "RaisedSignal:9(Killed)"},
        "Slurm job 7 ended (FAILED, exit code 0:9, RaisedSignal:9(Killed)) and left no record of the pod's end",
    ),
    (
        {"exit_code": 0, "signal": 53, "reason": "RaisedSignal:53(Real-time_signal_19)", "nodes": "c1"},
        (
            "Slurm job 7 ended (FAILED, exit code 0:53, RaisedSignal:53(Real-time_signal_19)): "
            "Slurm could not start its script on c1. Most often the working directory or the output file cannot be"
        ),
    ),
    (
        {"exit_code": 1, "signal": 0, "reason": "JobLaunchFailure"},
        "Slurm job 7 ended (FAILED, exit code 1:0, JobLaunchFailure): Slurm could not start its script. Most often",
    ),
]


@pytest.mark.parametrize(("known", "message"), ENDS)
def test_a_job_without_a_record_ends_with_slurms_words(known: dict[str, Any], message: str) -> None:
    """Its exit code and reason, and what they mean: nobody knows signal 53 by heart."""
    state = allocations.AllocationState(
        phase=allocations.Phase.ENDED, cause=allocations.Cause.FINISHED, state="FAILED", **known
    )
    facts = status.StatusInputs(started_at=NOW, allocation=state, job_id="7", is_over=True, output="last line")
    made = status.status(pod(), facts, now=NOW)
    assert (made["phase"], made["reason"]) == ("Failed", "ContainerStatusUnknown")
    assert made["message"].startswith(message)
    assert made["message"].endswith("; its last line of output: last line")


def test_a_long_message_among_short_ones_is_whole() -> None:
    """All messages of the pod together are what is bounded."""
    names = ("a", "b", "c", "d", "e", "f")
    told = {name: record("terminated") | {"terminated": ended(0) | {"message": "short"}} for name in names}
    told["f"]["terminated"] = ended(0) | {"message": "x" * 4096}
    wanted = made(pod(apps=names), report=report(told))
    assert [len(one["state"]["terminated"]["message"]) for one in wanted["containerStatuses"]] == [5] * 5 + [4096]
