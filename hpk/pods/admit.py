"""Whether this cluster can honour a pod, decided before anything is done for it; pure.

What cannot be honoured is refused by name, never ignored: a program that silently lost a field is worse than
one that did not start.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.kube import quantity, v1
from hpk.pods import resources
from hpk.slurm import flags, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpk.slurm import model as slurm_model

PREFIXES = ("slurm.hpk.io/", "slurm-job.hpk.io/")
FLAGS = ("slurm.hpk.io/flags", "slurm-job.hpk.io/flags")
"""The flags annotation and its older spelling; the first that is there counts."""
MPI_FLAGS = ("slurm.hpk.io/mpi-flags", "slurm-job.hpk.io/mpi-flags", "slurm-job.hpk.io/mpi-flag")
"""What mpirun is given, in all spellings that are in use; empty asks for nothing."""
EPHEMERAL = "spec.ephemeralContainers"
HARMLESS = frozenset({"spec.os.name", "spec.hostUsers", "spec.os"})
"""Fields that ask for what every pod has here: a user namespace, and Linux (which is looked at by itself)."""


NODE_RESOURCES = {
    "cpu": frozenset({"cpus-per-task", "overcommit"}),
    "memory": frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    resources.GPU: frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "nodes"}),
}
"""What one job on one node can have, each with the sbatch options that make another wish of it."""
UNSET_MEMORY_BYTES = 1 << 20
"""What Slurm says of a node whose memory nobody configured."""

ONE_ID = (
    ": your account has no subordinate ids on this site, so a pod has one id only"
    " (ask your administrator for entries in /etc/subuid and /etc/subgid)"
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the cluster offers, for decisions about pods.

    Attributes:
        allocatable: Of the node object: ``cpu``, ``memory``, ``nvidia.com/gpu`` and so on.
        labels: Of the node object.
        name: The node's.
        capacity: What Slurm last said of its nodes and partitions; None if it has said nothing.
        partition_names: All partitions, those too that are hidden from this user; empty if not known.
        architectures: Of the compute nodes, as far as Slurm knows them.
        architecture: Of hpk.sif and of all images, which is the control plane's own; empty if not known.
        flags: The settings' sbatch options for every pod.
        has_subordinate_ids: Whether a pod can have more ids than the user's own.
    """

    name: str
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    capacity: slurm_model.Capacity | None = None
    partition_names: frozenset[str] = frozenset()
    architectures: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""
    flags: Mapping[str, str | None] = field(default_factory=dict)
    has_subordinate_ids: bool = True


def admit(raw: dict[str, Any], *, cluster: Cluster) -> v1.Pod:
    """The typed pod, if all that it asks for can be given.

    Raises:
        errors.PodRefused: With everything that is wrong, by name, and the kubelet's reason.
    """
    pod = v1.pod(raw)
    problems = [*_unsupported(raw), *_annotations(pod), *_security(pod), *_unknown_volumes(pod, pod.all_containers)]
    if not cluster.has_subordinate_ids:
        problems += _several_ids(pod)
    if problems:
        raise errors.PodRefused("; ".join(problems))
    _check_placement(pod, cluster)
    _check_capacity(pod, cluster)
    if cluster.capacity is not None:
        options = {**cluster.flags, **job_flags(pod)}
        _check_nodes(pod, options, cluster.capacity)
        _check_time(options, cluster.capacity)
        _check_architecture(options, cluster, cluster.capacity)
    return pod


def refused(raw: dict[str, Any], *, cluster: Cluster) -> dict[str, str]:
    """By name, why an ephemeral container cannot be had; the pod itself is none the worse for it."""
    pod = v1.pod(raw)
    found = {}
    for index, container in enumerate(pod.spec.ephemeral_containers):
        path = f"{EPHEMERAL}[{index}]"
        unknown = v1.unsupported(raw["spec"]["ephemeralContainers"][index], v1.EphemeralContainer, path)
        problems = [f"{field} is not supported" for field in unknown]
        problems += [*_container_security(container), *_unknown_volumes(pod, [container])]
        if not cluster.has_subordinate_ids:
            problems += _different_ids(pod, [*pod.all_containers, container])
        if problems:
            found[container.name] = "; ".join(problems)
    return found


def doubt(pod: v1.Pod, cluster: Cluster) -> str | None:
    """What Slurm will hardly take, though the last word is its own: a partition that it did not name lately."""
    wanted = _wanted_partitions({**cluster.flags, **job_flags(pod)})
    missing = [name for name in wanted if name not in cluster.partition_names]
    if not missing or not cluster.partition_names:
        return None
    shown = cluster.capacity.partitions if cluster.capacity else cluster.partition_names
    return f"invalid partition specified: {', '.join(missing)} (known: {', '.join(sorted(shown))})"


def job_flags(pod: v1.Pod) -> dict[str, str | None]:
    """The pod's own sbatch options.

    Raises:
        errors.PodRefused: They cannot be read, or would break the pod.
    """
    for key in FLAGS:
        if key in pod.metadata.annotations:
            return flags.parse(pod.metadata.annotations[key], source=f"annotation {key}")
    return {}


def _unsupported(raw: dict[str, Any]) -> list[str]:
    found = v1.unsupported(raw["spec"])
    # An ephemeral container's faults are not its pod's: see `refused`.
    found = [path for path in found if not path.startswith(EPHEMERAL)]
    problems = [f"{path} is not supported" for path in found if path not in HARMLESS]
    if (system := (raw["spec"].get("os") or {}).get("name", "linux")) != "linux":
        problems.append(f"spec.os.name: {system} is not supported")
    apart = (raw["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    if apart.get("requiredDuringSchedulingIgnoredDuringExecution"):
        problems.append(
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution is not supported: all pods "
            "are on one node; keep jobs apart by Slurm's own means, such as --exclusive in the flags annotation"
        )
    return problems


def _annotations(pod: v1.Pod) -> list[str]:
    problems = []
    for key, value in pod.metadata.annotations.items():
        if key in MPI_FLAGS:
            if value.strip():
                problems.append(
                    f"annotation {key} is not supported: HPK does not start MPI ranks yet. Leave it out, ask for the "
                    f"CPUs in {FLAGS[0]}, and let the container start its own ranks (mpirun -np N ...) on its node"
                )
        elif key.startswith(PREFIXES) and key not in FLAGS:
            near = difflib.get_close_matches(key, FLAGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FLAGS)}"
            problems.append(f"annotation {key} is not known ({hint})")
    try:
        job_flags(pod)
    except errors.PodRefused as error:
        problems.append(str(error))
    return problems


def _security(pod: v1.Pod) -> list[str]:
    problems = _seccomp("spec.securityContext", pod.spec.security_context.seccomp_profile)
    for container in pod.all_containers:
        problems += _container_security(container)
    return problems


def _container_security(container: v1.Container) -> list[str]:
    context = container.security_context
    where = f"container {container.name}: securityContext"
    problems = _seccomp(where, context.seccomp_profile)
    if context.privileged:
        problems.append(f"{where}.privileged: a pod has no privilege over the compute node")
    return problems


def _seccomp(where: str, profile: v1.SeccompProfile | None) -> list[str]:
    is_local = profile is not None and profile.type == "Localhost"
    return [f"{where}.seccompProfile of type Localhost is not supported"] if is_local else []


def _several_ids(pod: v1.Pod) -> list[str]:
    """What one id cannot do.  It can be any one: a container that asks for a uid gets its number."""
    context = pod.spec.security_context
    problems = []
    if context.fs_group is not None:
        problems.append(f"spec.securityContext.fsGroup {context.fs_group}{ONE_ID}")
    if context.supplemental_groups:
        groups = ", ".join(map(str, context.supplemental_groups))
        problems.append(f"spec.securityContext.supplementalGroups {groups}{ONE_ID}")
    users = {c.security_context.run_as_user for c in pod.all_containers} | {context.run_as_user}
    if pod.spec.share_process_namespace and users - {0, None}:
        problems.append(f"spec.shareProcessNamespace as a user other than 0{ONE_ID}")
    return problems + _different_ids(pod, pod.all_containers)


def _different_ids(pod: v1.Pod, containers: Sequence[v1.Container]) -> list[str]:
    context = pod.spec.security_context
    problems = []
    for name, default, wanted in (
        ("runAsUser", context.run_as_user, [c.security_context.run_as_user for c in containers]),
        ("runAsGroup", context.run_as_group, [c.security_context.run_as_group for c in containers]),
    ):
        numbers = {default if number is None else number for number in wanted} - {None}
        if len(numbers) > 1:
            listed = " and ".join(str(number) for number in sorted(n for n in numbers if n is not None))
            problems.append(f"securityContext.{name} {listed} in one pod{ONE_ID}")
    return problems


def _unknown_volumes(pod: v1.Pod, containers: Sequence[v1.Container]) -> list[str]:
    """Volumes that name no source that we know (an unknown one is listed by its own name already)."""
    names = {volume.name for volume in pod.spec.volumes}
    return [
        f"container {container.name}: volumeMount '{mount.name}' has no volume"
        for container in containers
        for mount in container.volume_mounts
        if mount.name not in names
    ]


def _check_placement(pod: v1.Pod, cluster: Cluster) -> None:
    wrong = [f"{key}={value}" for key, value in pod.spec.node_selector.items() if cluster.labels.get(key) != value]
    required = (pod.spec.affinity.get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    terms = (required or {}).get("nodeSelectorTerms", [])
    if wrong or (terms and not any(_matches(term, cluster) for term in terms)):
        what = f"nodeSelector {', '.join(wrong)}" if wrong else "the required node affinity"
        message = f"Pod was rejected: Predicate NodeAffinity failed: node {cluster.name} does not match {what}"
        raise errors.PodRefused(message, reason="NodeAffinity")


def _matches(term: dict[str, Any], cluster: Cluster) -> bool:
    return all(_holds(e, cluster.labels.get(e["key"])) for e in term.get("matchExpressions") or []) and all(
        _holds(e, cluster.name if e["key"] == "metadata.name" else None) for e in term.get("matchFields") or []
    )


def _holds(expression: dict[str, Any], value: str | None) -> bool:
    """One requirement of a node selector term, as apimachinery's labels.Requirement matches."""
    values = expression.get("values") or []
    operator = expression["operator"]
    if operator in {"Gt", "Lt"}:
        return value is not None and (int(value) > int(values[0])) == (operator == "Gt") and value != values[0]
    known = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return known.get(operator, False)


def _check_capacity(pod: v1.Pod, cluster: Cluster) -> None:
    """Refuse what the whole cluster could never give; whether it is free now is for Slurm to say."""
    names = {name for c in pod.all_containers for part in (c.resources.requests, c.resources.limits) for name in part}
    for name in sorted(names):
        wanted = resources.effective(pod, lambda c, name=name: _wanted(c, name))  # type: ignore[misc]
        if cluster.capacity and cluster.capacity.nodes and name in NODE_RESOURCES:
            continue  # measured against single nodes, those that are drained now included
        offered = cluster.allocatable.get(name)
        if offered is None and wanted and (name in {"cpu", "memory"} or name == "ephemeral-storage"):
            continue  # not known yet: the node has just started
        if wanted > (offered or Decimal(0)):
            what = f"{name}, requested: {wanted}, capacity: {offered or 0}"
            message = f"Pod was rejected: Node didn't have enough resource: {what}"
            raise errors.PodRefused(message, reason=f"OutOf{name}")


def _wanted(container: v1.Container, name: str) -> Decimal:
    value = container.resources.requests.get(name, container.resources.limits.get(name, 0))
    return quantity.parse(value)


def _wanted_partitions(options: Mapping[str, str | None]) -> list[str]:
    return [name for name in (options.get("partition") or "").split(",") if name]


def _check_nodes(pod: v1.Pod, options: Mapping[str, str | None], capacity: slurm_model.Capacity) -> None:
    """Refuse what no node of the partition has, whether it is usable now or not: sbatch would, for good."""
    names = set(_wanted_partitions(options) or [capacity.default_partition or ""])
    is_known = names <= capacity.partitions.keys()
    nodes = [node for node in capacity.nodes.values() if not is_known or node.partitions & names]
    if not nodes:
        return
    asked = resources.request(pod)
    measures = {
        "cpu": (asked.cpus, max(node.cpus for node in nodes)),
        "memory": (asked.memory_bytes or 0, max(node.memory_bytes for node in nodes)),
        resources.GPU: (asked.gpus, max(node.gres.get("gpu", 0) for node in nodes)),
    }
    where = f" of partition {', '.join(sorted(names))}" if is_known else ""
    for name, (wanted, largest) in measures.items():
        is_unset = name == "memory" and largest <= UNSET_MEMORY_BYTES
        if wanted > largest and not is_unset and not options.keys() & NODE_RESOURCES[name]:
            what = f"{name}, requested: {wanted}, capacity: {largest} (the largest node{where})"
            message = f"Pod was rejected: Node didn't have enough resource: {what}"
            raise errors.PodRefused(message, reason=f"OutOf{name}")


def _check_architecture(options: Mapping[str, str | None], cluster: Cluster, capacity: slurm_model.Capacity) -> None:
    """Refuse a partition on none of whose nodes the image could run; a node that Slurm has not seen may be any."""
    names = set(_wanted_partitions(options) or [capacity.default_partition or ""])
    nodes = [node.name for node in capacity.nodes.values() if node.partitions & names]
    found = {cluster.architectures.get(name, "") for name in nodes}
    if not cluster.architecture or not nodes or found & {"", cluster.architecture}:
        return
    there = ", ".join(f"linux/{name}" for name in sorted(found))
    raise errors.PodRefused(
        f"Pod was rejected: the images here are linux/{cluster.architecture}, as the control plane is, and the nodes "
        f"of partition {', '.join(sorted(names))} are {there}",
        reason="ArchitectureMismatch",
    )


def _check_time(options: Mapping[str, str | None], capacity: slurm_model.Capacity) -> None:
    """Refuse a time limit beyond the partition's: such a job would wait for ever.  A QOS may allow it."""
    text = options.get("time")
    names = _wanted_partitions(options) or [capacity.default_partition or ""]
    partitions = [capacity.partitions[name] for name in names if name in capacity.partitions]
    longest = [partition.max_seconds for partition in partitions if partition.max_seconds is not None]
    if not text or "qos" in options or not partitions or len(longest) < max(len(partitions), len(names)):
        return
    seconds = parse.duration(text)
    if seconds is None or seconds > max(longest):
        limit = parse.time_text(max(longest))
        message = f"--time={text} is longer than partition {', '.join(names)} allows ({limit})"
        raise errors.PodRefused(f"Cannot use the job's flags: {message}", reason="InvalidFlags")
