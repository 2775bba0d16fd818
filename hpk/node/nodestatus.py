"""The desired state of the Node object, and the patch towards it. Pure.

Others write to the same object: the node controller sets taints and ``Ready=Unknown``, administrators set labels, tests
add capacities. Each patch therefore names only our own keys.
Source: kubelet_node_status.go of Kubernetes 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from hpk.kube import quantity
from hpk.node import systeminfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.images import store
    from hpk.slurm import model

SILENCE_SECONDS = 120.0
"""Time without an answer from Slurm (restarts, rate limits) before the node is NotReady."""
TROUBLE = "ControlPlaneTrouble"
"""The type of the condition that reports problems of the control plane."""
MOST_IMAGES = 50
MOST_IMAGE_NAMES = 5

EXTENDED_RESOURCES: Mapping[str, str] = {"gpu": "nvidia.com/gpu"}
"""Extended resources by Slurm gres name; other gres are not offered."""

DECLARED_FEATURES = ("ExtendWebSocketsToKubelet",)
"""The kubelet accepts clients' WebSockets, so the API server need not translate them. Must be sorted."""

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """Facts that do not change while the kubelet runs."""

    name: str
    system: systeminfo.SystemInfo
    address: str
    """The InternalIP, at which the API server reaches the kubelet."""
    hostname: str
    port: int
    apptainer_version: str
    max_pods: int
    ephemeral_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Additional labels; NodeRestriction allows the node's own identity few under ``kubernetes.io``."""
    taints: tuple[Mapping[str, str], ...] = ()
    """Set only when the node is created."""


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """The Ready condition."""

    is_ready: bool = True
    reason: str = "KubeletReady"
    message: str = "kubelet is posting ready status"


@dataclass(frozen=True, kw_only=True)
class NodeObservation:
    """The observed state. A capacity of None (no answer from Slurm) leaves the published one unchanged."""

    capacity: model.ClusterCapacity | None
    readiness: Readiness = Readiness()
    images: tuple[store.CachedImage, ...] = ()
    trouble: str = ""
    """What the control plane cannot repair by itself."""
    disk_pressure: str = ""
    """Why there is no space for pods' images and files; empty if there is."""


def readiness(
    *,
    now: float,
    started_at: float,
    answered_at: float | None,
    error: str = "",
) -> Readiness:
    """Return the Ready condition: ready if Slurm has answered recently enough.

    Args:
        now: Unix time, as all the others.
        started_at: When the kubelet started.
        answered_at: When slurmctld last answered; None if it never did.
        error: Why the last query failed; empty if it succeeded.
    """
    if answered_at is None:
        since = f"the kubelet started at {_stamp(started_at)}"
    elif error and now - answered_at > SILENCE_SECONDS:  # no error: there was no query since
        since = _stamp(answered_at)  # not the age, which would change the message each time
    else:
        return Readiness()
    message = f"slurmctld has not answered since {since}" + (f": {error}" if error else "")
    return Readiness(is_ready=False, reason="SlurmUnavailable", message=message)


def labels(facts: NodeFacts) -> dict[str, str]:
    """Return the labels that the kubelet sets."""
    arch = facts.system.architecture
    return {
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": arch,
        **facts.labels,
    }


def resources(facts: NodeFacts, capacity: model.ClusterCapacity) -> dict[str, str]:
    """Return the cluster's capacity as Kubernetes resources. All of it is allocatable; Slurm keeps its own reserve."""
    found = {
        "cpu": str(capacity.cpus),
        "memory": f"{capacity.memory_bytes // 1024}Ki",
        "pods": str(facts.max_pods),
    }
    if facts.ephemeral_bytes is not None:
        found["ephemeral-storage"] = f"{facts.ephemeral_bytes // 1024}Ki"
    for gres, name in EXTENDED_RESOURCES.items():
        if count := capacity.gres.get(gres, 0):
            found[name] = str(count)
    return found


def status(facts: NodeFacts, seen: NodeObservation) -> Object:
    """Return the status to publish; its conditions lack their times (see :func:`status_patch`)."""
    machine = facts.system
    made: Object = {
        "conditions": [*_conditions(seen.readiness, seen.disk_pressure), _trouble(seen.trouble)],
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.hostname},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.port}},
        "nodeInfo": {
            "machineID": machine.machine_id,
            "systemUUID": machine.system_uuid,
            "bootID": machine.boot_id,
            "kernelVersion": machine.kernel_version,
            "osImage": machine.os_image,
            "containerRuntimeVersion": f"apptainer://{facts.apptainer_version}",
            "kubeletVersion": systeminfo.KUBELET_VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": machine.architecture,
        },
        "images": _images(seen.images),
        "declaredFeatures": list(DECLARED_FEATURES),
    }
    if seen.capacity is not None:
        made["capacity"] = resources(facts, seen.capacity)
        made["allocatable"] = dict(made["capacity"])
    return made


def new_node(facts: NodeFacts, seen: NodeObservation, *, now: float) -> Object:
    """Return the Node to create."""
    made = status(facts, seen)
    for condition in made["conditions"]:
        condition |= {"lastHeartbeatTime": _stamp(now), "lastTransitionTime": _stamp(now)}
    spec: Object = {"taints": [dict(taint) for taint in facts.taints]} if facts.taints else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": facts.name, "labels": labels(facts)},
        "spec": spec,
        "status": made,
    }


def status_patch(node: Object, facts: NodeFacts, seen: NodeObservation, *, now: float, is_due: bool) -> Object | None:
    """Return the strategic merge patch that updates the server's node, or None if nothing is to be written.

    If `is_due`, a patch is returned even without a change.
    """
    wanted = status(facts, seen)
    have = node.get("status") or {}
    _withdraw(wanted, have)
    ours = labels(facts)
    have_labels = node["metadata"].get("labels") or {}
    same_labels = all(have_labels.get(key) == value for key, value in ours.items())
    if not is_due and same_labels and _is_same(have, wanted):
        return None
    known = {condition["type"]: condition for condition in have.get("conditions") or []}
    for condition in wanted["conditions"]:
        old = known.get(condition["type"], {})
        moved = old.get("status") != condition["status"]
        condition["lastHeartbeatTime"] = _stamp(now)
        condition["lastTransitionTime"] = _stamp(now) if moved else old.get("lastTransitionTime", _stamp(now))
    # The list merges by type and would keep an address that we no longer have.
    wanted["addresses"] = [*wanted["addresses"], {"$patch": "replace"}]
    # With the UID, patching a node that was recreated meanwhile is a conflict.
    metadata: Object = {"uid": node["metadata"]["uid"]}
    if not same_labels:
        metadata["labels"] = ours
    return {"metadata": metadata, "status": wanted}


def _withdraw(wanted: Object, have: Object) -> None:
    """Set resources to 0 that we no longer offer; leave others' keys alone."""
    if "capacity" not in wanted:
        return
    for part in ("capacity", "allocatable"):
        for name in EXTENDED_RESOURCES.values():
            if name in (have.get(part) or {}):
                wanted[part].setdefault(name, "0")


def _conditions(ready: Readiness, disk_pressure: str) -> list[Object]:
    return [
        _condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        _disk(disk_pressure),
        _condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        _condition("Ready", "True" if ready.is_ready else "False", ready.reason, ready.message),
    ]


def _trouble(text: str) -> Object:
    """Return a custom condition, in the way of node-problem-detector."""
    state, reason = ("True", "Trouble") if text else ("False", "NoTrouble")
    return _condition(TROUBLE, state, reason, text or "the control plane has what it needs")


def _disk(why: str) -> Object:
    if not why:
        return _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    return _condition("DiskPressure", "True", "KubeletHasDiskPressure", f"kubelet has disk pressure: {why}")


def _condition(kind: str, state: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": state, "reason": reason, "message": message}


def _images(images: tuple[store.CachedImage, ...]) -> list[Object]:
    """Return the largest images, chosen as the kubelet does, for the scheduler and users."""
    chosen = sorted(images, key=lambda image: (-image.size_bytes, image.names))[:MOST_IMAGES]
    return [{"names": list(image.names[:MOST_IMAGE_NAMES]), "sizeBytes": image.size_bytes} for image in chosen]


def _is_same(have: Object, wanted: Object) -> bool:
    """Return whether the server's status contains all of ours."""
    said = {condition["type"]: condition for condition in have.get("conditions") or []}
    return (
        all(_holds(said.get(condition["type"]), condition) for condition in wanted["conditions"])
        and (have.get("addresses") or []) == wanted["addresses"]
        and (have.get("images") or []) == wanted["images"]
        and (have.get("declaredFeatures") or []) == wanted["declaredFeatures"]
        and have.get("daemonEndpoints") == wanted["daemonEndpoints"]
        and _holds(have.get("nodeInfo"), wanted["nodeInfo"])
        and all(_holds_quantities(have.get(part), wanted.get(part) or {}) for part in ("capacity", "allocatable"))
    )


def _holds(have: Object | None, wanted: Object) -> bool:
    return have is not None and all(have.get(key, "") == value for key, value in wanted.items())


def _holds_quantities(have: Object | None, wanted: Mapping[str, str]) -> bool:
    # Compare by value: the API server may write 1000 as 1k and 1024Ki as 1Mi.
    return all(
        key in (have or {}) and quantity.parse((have or {})[key]) == quantity.parse(value)
        for key, value in wanted.items()
    )


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
