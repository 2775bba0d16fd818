"""``v1.PodStatus`` from the agent's and Slurm's reports; pure.

Two sources, in order: the agent's report says what happened in the pod, Slurm what happened to the job. Slurm's silence
changes nothing. Phase and conditions follow pkg/kubelet/kubelet_pods.go (getPhase, generateAPIPodStatus) and
pkg/kubelet/status/generate.go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hpk.pods import allocations, conditions, life

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import records
    from hpk.kube import v1

KILLED = frozenset({128 + 9, 128 + 15})
"""Exit codes of a container killed by a signal from Slurm or the kernel."""
UNKNOWN_EXIT_CODE = 137
LOST = "ContainerStatusUnknown"
NOT_BEGUN = frozenset({"ContainerCreating", "PodInitializing"})
"""The waiting reasons of a container that has not started yet."""
TERMINAL = frozenset({"Succeeded", "Failed"})
MOST_MESSAGE_BYTES = 12 << 10
"""The total length of a pod's termination messages, in equal parts (MaxPodTerminationMessageLogLength)."""
OURS = frozenset(
    {"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready", "DisruptionTarget"}
)
"""The conditions that the kubelet owns; others are left alone."""


FAILURES: Mapping[allocations.Cause | None, tuple[str, str]] = {
    allocations.Cause.CANCELLED: ("Evicted", "was cancelled"),
    allocations.Cause.TIME_LIMIT: ("Evicted", "reached its time limit"),
    allocations.Cause.OUT_OF_MEMORY: ("OOMKilled", "went over its memory; raise the containers' memory limits"),
    allocations.Cause.NODE_FAILED: ("Evicted", "was lost: its compute node failed"),
    allocations.Cause.PREEMPTED: ("Evicted", "was preempted"),
}
"""The pod's reason and the job's fate, by cause; Argo and others test for ``Evicted``."""


@dataclass(frozen=True, kw_only=True)
class StatusInputs:
    """The facts from which a pod's status is made.

    Attributes:
        started_at: When the kubelet accepted the pod; never changes.
        waiting: By container, why it does not run yet, before there is a report.
        report: The agent's newest, or None.
        allocation: Slurm's state of the pod's job; None before there is one.
        failure: (reason, message) of a pod that the kubelet itself failed, such as a refused one.
        is_over: Whether nothing of the pod runs or will run.
        output: The job's last line, if its agent left no record of its end.
        images: (image, image id) by container name, if resolved.
        is_changing: Whether a change of the specification must still be sent to the pod's agent.
    """

    started_at: datetime
    waiting: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    report: records.Report | None = None
    allocation: allocations.AllocationState | None = None
    job_id: str = ""
    failure: tuple[str, str] | None = None
    is_over: bool = False
    output: str = ""
    images: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    is_changing: bool = False


def is_terminal(raw: Mapping[str, Any]) -> bool:
    """Return whether the phase of a pod's object is final."""
    return (raw.get("status") or {}).get("phase") in TERMINAL


def status(pod: v1.Pod, facts: StatusInputs, *, now: datetime) -> dict[str, Any]:
    """Return the status that the pod should have; keys to be removed are None."""
    statuses = {c.name: _container(pod, c, facts) for c in pod.all_containers}
    phase = _phase(pod, statuses, facts)
    if facts.failure and phase != "Succeeded" and (facts.is_over or facts.report is None):
        phase = "Failed"  # whatever has started must end first
    reason, message = _why(facts, phase)
    told = _of_the_failed(statuses, reason) if phase == "Failed" and facts.is_over else statuses
    pod_ip = facts.report["pod_ip"] if facts.report else None
    host_ip = facts.report["host_ip"] if facts.report else None
    inits = [told[c.name] for c in pod.spec.init_containers if c.name in told]
    apps = sorted((told[c.name] for c in pod.spec.containers if c.name in told), key=lambda s: str(s["name"]))
    has_sandbox = bool(pod_ip and not facts.is_over)
    disruption = message if phase == "Failed" and is_disrupted(facts) else None
    found = conditions.conditions(pod, statuses, phase=phase, has_sandbox=has_sandbox, disruption=disruption)
    generation, changed_at = _generation(pod, facts), stamp(now.timestamp())
    return {
        "observedGeneration": generation,
        "phase": phase,
        "reason": reason or None,
        "message": message or None,
        "startTime": stamp(facts.started_at.timestamp()),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}] if host_ip else None,
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}] if pod_ip else None,
        "initContainerStatuses": inits or None,
        "containerStatuses": apps or None,
        "ephemeralContainerStatuses": [_ephemeral(pod, c, facts) for c in pod.spec.ephemeral_containers] or None,
        "conditions": [{**one, "observedGeneration": generation, "lastTransitionTime": changed_at} for one in found],
    }


def _generation(pod: v1.Pod, facts: StatusInputs) -> int:
    """Return the generation of the running specification; an edit counts once its agent knows it."""
    if facts.is_changing:
        return pod.status.observed_generation or pod.metadata.generation - 1
    return pod.metadata.generation


def stamp(seconds: float) -> str:
    """Return a time in the API server's format: whole seconds, UTC."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Containers


def _container(pod: v1.Pod, container: v1.Container, facts: StatusInputs) -> dict[str, Any]:
    record = facts.report["containers"].get(container.name) if facts.report else None
    image, image_id = facts.images.get(container.name, (container.image, ""))
    made: dict[str, Any] = {"name": container.name, "image": image, "imageID": image_id, "restartCount": 0}
    made |= {"ready": False, "started": False, "state": {}, "lastState": {}, "containerID": None}
    if record is None:
        made["state"] = {"waiting": _first_wait(pod, container, facts)}
    else:
        made |= {"ready": record["ready"], "started": record["started"], "restartCount": record["restart_count"]}
        made["image"] = record.get("image") or image
        made["imageID"] = record.get("image_id") or image_id
        made["state"] = _state(record)
        made["containerID"] = _container_id(record["container_id"])
        if record["last_terminated"]:
            made["lastState"] = {"terminated": _terminated(record["last_terminated"])}
    made = _as_lost(made, facts) if facts.is_over else made
    if container in pod.spec.init_containers and not conditions.is_sidecar(container) and "terminated" in made["state"]:
        made["ready"] = made["state"]["terminated"]["exitCode"] == 0  # even if the pod is over, like the kubelet
    return _shortened(made, pod, facts)


def _shortened(made: dict[str, Any], pod: v1.Pod, facts: StatusInputs) -> dict[str, Any]:
    """Return the status with termination messages cut to equal parts, like status_manager.go, if they are too long.

    The beginning is kept, in whole characters; controllers that store results in messages rely on that. If all messages
    together are within the limit, none is cut, while the kubelet cuts a long one among short ones.
    """
    told = facts.report["containers"].values() if facts.report else ()
    if sum(max(_length(one["terminated"]), _length(one["last_terminated"])) for one in told) <= MOST_MESSAGE_BYTES:
        return made
    spec = pod.spec
    most = MOST_MESSAGE_BYTES // len([*spec.containers, *spec.init_containers, *spec.ephemeral_containers])
    for state in (made["state"], made["lastState"]):
        ended = state.get("terminated", {})
        if len(text := ended.get("message", "").encode("utf-8", "replace")) > most:
            ended["message"] = text[:most].decode("utf-8", "ignore")
    return made


def _length(run: records.Terminated | None) -> int:
    return len(run["message"].encode("utf-8", "replace")) if run else 0


def _ephemeral(pod: v1.Pod, container: v1.Container, facts: StatusInputs) -> dict[str, Any]:
    """Return an ephemeral container's status; it is neither ready nor started, because nothing waits for it."""
    made = _container(pod, container, facts)
    if made["state"].get("waiting", {}).get("reason") == "PodInitializing":
        made["state"]["waiting"]["reason"] = "ContainerCreating"
    return made | {"ready": False, "started": None}


def _first_wait(pod: v1.Pod, container: v1.Container, facts: StatusInputs) -> dict[str, Any]:
    """Return why a container has not started; with init containers, all wait as PodInitializing."""
    reason, message = facts.waiting.get(container.name, ("", ""))
    default = "PodInitializing" if pod.spec.init_containers else "ContainerCreating"
    return _without_empty({"reason": reason or default, "message": message})


def _state(record: records.ContainerRecord) -> dict[str, Any]:
    if record["state"] == "running":
        return {"running": {"startedAt": stamp(record["started_at"] or 0)}}
    if record["state"] == "terminated" and record["terminated"]:
        return {"terminated": _terminated(record["terminated"])}
    return {"waiting": _without_empty({"reason": record["reason"], "message": record["message"]})}


def _terminated(run: records.Terminated) -> dict[str, Any]:
    return _without_empty(
        {
            "signal": run["signal"],
            "reason": run["reason"],
            "message": run["message"],
            "containerID": _container_id(run["container_id"]),
        }
    ) | {
        "exitCode": run["exit_code"],
        "startedAt": stamp(run["started_at"]) if run["started_at"] else None,
        "finishedAt": stamp(run["finished_at"]) if run["finished_at"] else None,
    }


def _container_id(short: str) -> str | None:
    return f"apptainer://{short}" if short else None


def _as_lost(made: dict[str, Any], facts: StatusInputs) -> dict[str, Any]:
    """Return the container's status in a pod that is over: one that still claims to run is lost."""
    made |= {"ready": False, "started": False}
    running = made["state"].get("running")
    is_out_of_memory = _cause(facts) is allocations.Cause.OUT_OF_MEMORY
    if running is not None:
        reason = "OOMKilled" if is_out_of_memory else LOST
        made["state"] = {"terminated": _lost(running["startedAt"], reason=reason)}
    elif is_out_of_memory and (ended := made["state"].get("terminated")) and ended["exitCode"] in KILLED:
        # The agent saw only a signal, from Slurm or from the kernel's kill in the job's cgroup.
        made["state"] = {"terminated": {**ended, "reason": "OOMKilled", "exitCode": UNKNOWN_EXIT_CODE}}
    return made


def _of_the_failed(statuses: Mapping[str, dict[str, Any]], reason: str) -> Mapping[str, dict[str, Any]]:
    """Return the statuses of a failed pod's containers, none of which may seem about to start.

    If nobody recorded the pod's end, all its containers are lost. If nothing ever ran, none has a status, as when the
    kubelet rejects a pod, so that kubectl shows the pod's own reason.
    """
    has_run = any("waiting" not in made["state"] or made["lastState"] for made in statuses.values())
    if has_run or any(made["state"]["waiting"].get("reason") not in NOT_BEGUN for made in statuses.values()):
        return statuses
    if reason != LOST:
        return {}
    return {name: made | {"state": {"terminated": _lost(None)}} for name, made in statuses.items()}


def _lost(started_at: str | None, *, reason: str = LOST) -> dict[str, Any]:
    """Return the terminated state of a container whose end nobody saw; the message applies to LOST alone."""
    message = "The container could not be located when the pod was terminated" if reason == LOST else ""
    return _without_empty({"message": message}) | {
        "exitCode": UNKNOWN_EXIT_CODE,
        "reason": reason,
        "startedAt": started_at,
        "finishedAt": None,
    }


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value}


# Phase


def _phase(pod: v1.Pod, statuses: Mapping[str, dict[str, Any]], facts: StatusInputs) -> str:
    apps = pod.spec.containers
    if facts.is_over:
        return _final_phase(pod, statuses, facts)
    plain = [c for c in pod.spec.init_containers if not conditions.is_sidecar(c)]
    for container in plain:
        code = conditions.exit_code(statuses[container.name])
        if code != 0 or "terminated" not in statuses[container.name]["state"]:
            return "Pending"  # a failed one fails the pod only when the agent reports the end
    states = [statuses[c.name] for c in apps]
    is_any_app_begun = any("waiting" not in s["state"] or conditions.exit_code(s) is not None for s in states)
    sidecars = [c for c in pod.spec.init_containers if conditions.is_sidecar(c)]
    if not is_any_app_begun and not all(statuses[c.name]["started"] for c in sidecars):
        return "Pending"
    if any(conditions.exit_code(s) is None and "waiting" in s["state"] for s in states):
        return "Pending"
    # Terminal phases are final, so they wait for the agent's report that nothing runs.
    return "Running"


def _final_phase(pod: v1.Pod, statuses: Mapping[str, dict[str, Any]], facts: StatusInputs) -> str:
    """Return the phase of a pod that is over: Succeeded only if every container exited by itself with 0."""
    codes = [conditions.exit_code(statuses[c.name]) for c in pod.spec.containers]
    return "Failed" if _cut_short(facts) or any(code is None or code != 0 for code in codes) else "Succeeded"


def _cut_short(facts: StatusInputs) -> bool:
    """Return whether something ended the pod before its containers ended; after a deletion their exit codes decide."""
    ended = facts.report["ended"] if facts.report else None
    if ended and ended["reason"] != "Deleted":
        return True
    cause = _cause(facts)
    is_finished = bool(facts.report and facts.report["finished_at"])
    return not is_finished and cause not in {None, allocations.Cause.FINISHED}


def _cause(facts: StatusInputs) -> allocations.Cause | None:
    """Return why the pod's job ended.

    With cgroups Slurm reports OUT_OF_MEMORY for any job in which the kernel killed a process, even if the job then
    ended by itself. It is the pod's cause only if one of its containers was killed.
    """
    cause = facts.allocation.cause if facts.allocation else None
    if cause is allocations.Cause.OUT_OF_MEMORY and facts.report and facts.report["finished_at"]:
        runs = [record["terminated"] for record in facts.report["containers"].values()]
        if not facts.report["ended"] and not any(run and run["exit_code"] in KILLED for run in runs):
            return allocations.Cause.FINISHED
    return cause


# Reason and message


def _why(facts: StatusInputs, phase: str) -> tuple[str, str]:
    if facts.failure and phase == "Failed":
        return facts.failure
    state = facts.allocation
    ended = facts.report["ended"] if facts.report else None
    if phase == "Failed" and ended and ended["reason"] == "DeadlineExceeded":
        return "DeadlineExceeded", ended["message"]
    if phase == "Failed" and (told := job_failure(facts)):
        return told
    if phase == "Pending" and state and state.phase is allocations.Phase.QUEUED:
        why = f": {state.reason}" if state.reason and state.reason != "None" else ""
        return "", f"Slurm job {facts.job_id} is {state.state or 'PENDING'}{why}"
    return "", ""


def job_failure(facts: StatusInputs) -> tuple[str, str] | None:
    """Return (reason, message) of a pod whose job did not end by itself, or None."""
    ended = facts.report["ended"] if facts.report else None
    state = facts.allocation
    cause = _cause(facts)
    job = f"Slurm job {facts.job_id}"
    if ended and ended["reason"] == "Deleted":
        return None
    if cause in FAILURES:
        reason, what = FAILURES[cause]
        return reason, f"{job} {what}"
    if ended and (what := _how_evicted(ended, state)):
        return "Evicted", f"{job} {what}"
    if ended:
        return ended["reason"], ended["message"] or f"{job} was ended from outside"
    if facts.report is None or not facts.report["finished_at"]:
        said = f"; its last line of output: {facts.output}" if facts.output else ""
        return LOST, f"{job} ended{how_it_ended(state)}{said}"
    return None


COULD_NOT_START = 53
"""Slurm's signal number for a script that slurmstepd could not start, as in ``ExitCode=0:53``."""


def how_it_ended(state: allocations.AllocationState | None) -> str:
    """Return Slurm's exit code and reason for a job without its agent's record, with their meaning."""
    unrecorded = " and left no record of the pod's end"
    if state is None or state.exit_code is None:
        return unrecorded
    reason = "" if state.reason in {"", "None", "NonZeroExitCode"} else f", {state.reason}"
    code = f"{state.exit_code}:{state.signal or 0}"
    told = f" ({state.state}, exit code {code}{reason})"
    if (state.exit_code, state.signal) == (0, COULD_NOT_START) or "launch" in state.reason.lower():
        where = f" on {state.nodes}" if state.nodes else ""
        return (
            f"{told}: Slurm could not start its script{where}. Most often the working directory or the output file "
            "cannot be opened there (is the home directory mounted, and is there room?), or the site's prolog failed"
        )
    return f"{told}{unrecorded}"


def _how_evicted(ended: records.EndCause, state: allocations.AllocationState | None) -> str:
    """Return what happened to a job that Slurm still holds although its agent had to end; empty if unknown."""
    if ended["reason"] == "TimeLimit":
        return "reached its time limit"
    is_queued = state is not None and state.phase is allocations.Phase.QUEUED
    return "was requeued; a pod runs only once" if ended["reason"] == "Signalled" and is_queued else ""


def is_disrupted(facts: StatusInputs) -> bool:
    """Return whether the cluster ended the pod, rather than itself or its owner."""
    told = job_failure(facts)
    ended = facts.report["ended"] if facts.report else None
    is_its_own = ended is not None and ended["reason"] in life.OWN_ENDS
    return bool(told and told[0] == "Evicted" and not is_its_own)
