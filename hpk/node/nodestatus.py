"""What the Node object should say, and the patch that makes it say so; pure.

Others write to the same object: the node controller sets taints and ``Ready=Unknown``, administrators set labels,
tests add capacities of their own. So each patch names our own keys.
Source: kubelet_node_status.go of Kubernetes 1.37.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from hpk.kube import quantity
from hpk.node import host

if TYPE_CHECKING:
    from collections.abc import Mapping

SILENCE_SECONDS = 120.0
"""Slurm may be silent for this long (restarts, rate limits) before the node is said not to be ready."""
TROUBLE = "ControlPlaneTrouble"
"""The type of a condition that says what keeps the control plane from its work."""
MOST_IMAGES = 50
MOST_IMAGE_NAMES = 5

EXTENDED_RESOURCES: Mapping[str, str] = {"gpu": "nvidia.com/gpu"}
"""Slurm's gres by the name under which pods ask for it; what is not here is not offered."""

DECLARED_FEATURES = ("ExtendWebSocketsToKubelet",)
"""What the API server need not do for us: it hands clients' WebSockets on as they are. Sorted, as it wants them."""

Object = dict[str, Any]


class Capacity(Protocol):
    """What the whole cluster has, as Slurm counts it."""

    @property
    def cpus(self) -> int:
        """CPUs of all nodes that may run jobs."""
        ...

    @property
    def memory_bytes(self) -> int:
        """Memory of all nodes that may run jobs."""
        ...

    @property
    def gres(self) -> Mapping[str, int]:
        """Generic resources, by gres name."""
        ...


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What does not change while the kubelet runs."""

    name: str
    host: host.Host
    address: str
    """The InternalIP, where the API server reaches the kubelet."""
    hostname: str
    port: int
    apptainer_version: str
    max_pods: int
    ephemeral_bytes: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """More labels; the node's own identity may set few under ``kubernetes.io`` (NodeRestriction)."""
    taints: tuple[Mapping[str, str], ...] = ()
    """Set when the node is created, never later."""


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image on the shared file system; names are references with tag or digest."""

    names: tuple[str, ...]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """The Ready condition."""

    is_ready: bool = True
    reason: str = "KubeletReady"
    message: str = "kubelet is posting ready status"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What is seen now; a capacity of None (Slurm has not said) leaves the published one alone."""

    capacity: Capacity | None
    readiness: Readiness = Readiness()
    images: tuple[Image, ...] = ()
    trouble: str = ""
    """What the control plane cannot mend by itself, in words."""
    disk_pressure: str = ""
    """Why there is no room for pods' images and files; empty if there is."""


def readiness(
    *,
    now: float,
    started_at: float,
    answered_at: float | None,
    error: str = "",
    silence_seconds: float = SILENCE_SECONDS,
) -> Readiness:
    """Whether Slurm has answered lately enough to call the node ready.

    Args:
        now: Unix time, as all the others.
        started_at: When the kubelet started.
        answered_at: When slurmctld last answered; None if it never did.
        error: Why the last question had no answer, in the words of whoever asked; empty if it had one.
        silence_seconds: The patience.
    """
    if answered_at is None:
        since = f"the kubelet started at {_stamp(started_at)}"
    elif error and now - answered_at > silence_seconds:  # no error: nobody has asked since, and that is no silence
        since = _stamp(answered_at)  # the instant, not the age, or every look would have a message to write
    else:
        return Readiness()
    message = f"slurmctld has not answered since {since}" + (f": {error}" if error else "")
    return Readiness(is_ready=False, reason="SlurmUnavailable", message=message)


def labels(facts: Facts) -> dict[str, str]:
    """Our labels."""
    arch = facts.host.architecture
    return {
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": arch,
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": arch,
        **facts.labels,
    }


def resources(facts: Facts, capacity: Capacity) -> dict[str, str]:
    """The cluster's capacity in Kubernetes' words; all of it is allocatable, for Slurm keeps what it reserves."""
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


def status(facts: Facts, seen: Observation) -> Object:
    """The status that should be published; conditions lack their times (see :func:`status_patch`)."""
    machine = facts.host
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
            "kubeletVersion": host.KUBELET_VERSION,
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


def new_node(facts: Facts, seen: Observation, *, now: float) -> Object:
    """The Node to create."""
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


def status_patch(node: Object, facts: Facts, seen: Observation, *, now: float, is_due: bool) -> Object | None:
    """The strategic merge patch that makes the server's node true, or None if there is nothing to write.

    It is written even if nothing changed when it `is_due`.
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
    # The list merges by type, which would keep an address that we no longer have.
    wanted["addresses"] = [*wanted["addresses"], {"$patch": "replace"}]
    # The uid makes a node that was recreated under our hands a conflict.
    metadata: Object = {"uid": node["metadata"]["uid"]}
    if not same_labels:
        metadata["labels"] = ours
    return {"metadata": metadata, "status": wanted}


def _withdraw(wanted: Object, have: Object) -> None:
    """Set to 0 what we offered once and offer no more; a key that was never ours is not looked at."""
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
    """A condition of our own, as node-problem-detector adds such."""
    state, reason = ("True", "Trouble") if text else ("False", "NoTrouble")
    return _condition(TROUBLE, state, reason, text or "the control plane has what it needs")


def _disk(why: str) -> Object:
    if not why:
        return _condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
    return _condition("DiskPressure", "True", "KubeletHasDiskPressure", f"kubelet has disk pressure: {why}")


def _condition(kind: str, state: str, reason: str, message: str) -> Object:
    return {"type": kind, "status": state, "reason": reason, "message": message}


def _images(images: tuple[Image, ...]) -> list[Object]:
    """The largest images, as the kubelet chooses them; the scheduler and ``kubectl get node -o yaml`` read it."""
    chosen = sorted(images, key=lambda image: (-image.size_bytes, image.names))[:MOST_IMAGES]
    return [{"names": list(image.names[:MOST_IMAGE_NAMES]), "sizeBytes": image.size_bytes} for image in chosen]


def _is_same(have: Object, wanted: Object) -> bool:
    """Whether the server's status says all that ours says, whatever else it says."""
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
    # By value: the API server may write 1000 as 1k and 1024Ki as 1Mi.
    return all(
        key in (have or {}) and quantity.parse((have or {})[key]) == quantity.parse(value)
        for key, value in wanted.items()
    )


def _stamp(at: float) -> str:
    return datetime.fromtimestamp(at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
