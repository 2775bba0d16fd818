"""The conditions of a pod that the kubelet owns, from its containers' statuses; pure.

Source: pkg/kubelet/status/generate.go of Kubernetes 1.37.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.kube import v1


def conditions(
    pod: v1.Pod, statuses: Mapping[str, dict[str, Any]], *, phase: str, has_sandbox: bool, disruption: str | None
) -> list[dict[str, Any]]:
    """Return the conditions, without their times.

    Args:
        pod: With the conditions that others set, for its readiness gates.
        statuses: Of its init and app containers, by name.
        phase: The pod's.
        has_sandbox: Whether its containers have, or could have, a place to run.
        disruption: Why the cluster ended the pod; None if it did not.
    """
    unready = [c.name for c in pod.spec.containers if not statuses[c.name]["ready"]]
    sidecars = [c.name for c in pod.spec.init_containers if is_sidecar(c) and not statuses[c.name]["ready"]]
    ended = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(phase, "")
    unready = unready if ended else [*sidecars, *unready]
    not_ready = f"containers with unready status: [{' '.join(unready)}]"
    is_ready = not unready and phase == "Running"
    told = ("", "") if is_ready else (ended, "") if ended else ("ContainersNotReady", not_ready)
    closed = _closed_gates(pod) if is_ready else ""
    gated = (False, "ReadinessGatesNotReady", closed)
    found = [
        _condition("PodReadyToStartContainers", has_sandbox),
        _initialized(pod, statuses, phase=phase),
        _condition("Ready", *(gated if closed else (is_ready, *told))),
        _condition("ContainersReady", is_ready, *told),
        _condition("PodScheduled", True),
    ]
    if disruption is not None:
        found.append(_condition("DisruptionTarget", True, "TerminationByKubelet", disruption))
    return found


def is_sidecar(container: v1.Container) -> bool:
    """Return whether an init container keeps running beside the others."""
    return container.restart_policy == "Always"


def exit_code(made: Mapping[str, Any]) -> int | None:
    """Return the exit code of a stopped container (now, or before the run that it waits for), else None."""
    ended = made["state"].get("terminated")
    if ended is None and "waiting" in made["state"]:
        ended = made["lastState"].get("terminated")
    return None if ended is None else int(ended["exitCode"])


def _closed_gates(pod: v1.Pod) -> str:
    """Return which readiness gates are not True, worded as in GeneratePodReadyCondition; empty if all are."""
    have = {condition.type: condition.status for condition in pod.status.conditions}
    texts = []
    for name in (gate.condition_type for gate in pod.spec.readiness_gates):
        if name not in have:
            texts.append(f'corresponding condition of pod readiness gate "{name}" does not exist.')
        elif have[name] != "True":
            texts.append(f'the status of pod readiness gate "{name}" is not "True", but {have[name]}')
    return ", ".join(texts)


def _condition(kind: str, value: bool, reason: str = "", message: str = "") -> dict[str, Any]:  # noqa: FBT001 - is the value
    return {
        "type": kind,
        "status": "True" if value else "False",
        "reason": reason or None,
        "message": message or None,
    }


def _initialized(pod: v1.Pod, statuses: Mapping[str, dict[str, Any]], *, phase: str) -> dict[str, Any]:
    incomplete = [c.name for c in pod.spec.init_containers if not _is_initialised(c, statuses[c.name])]
    begun = any("waiting" not in statuses[c.name]["state"] for c in pod.spec.containers)
    if phase == "Succeeded":
        return _condition("Initialized", True, "PodCompleted")
    if not incomplete or begun:
        return _condition("Initialized", True)
    message = f"containers with incomplete status: [{' '.join(incomplete)}]"
    return _condition("Initialized", False, "ContainersNotInitialized", message)


def _is_initialised(container: v1.Container, made: dict[str, Any]) -> bool:
    return bool(made["started"]) if is_sidecar(container) else exit_code(made) == 0
