"""Whether this cluster can run a pod, decided before anything is done for it; pure.

Unsupported fields are rejected by name, never ignored: a program that silently loses a field is worse than one that
does not start. A pod that a change of the node could help is not rejected: ``hpk.pods.schedule`` lets it wait.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.kube import v1
from hpk.pods import fields, lanes, resources
from hpk.slurm import flags, parse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from decimal import Decimal

    from hpk.kube import selectors
    from hpk.slurm import model as slurm_model

PREFIXES = ("slurm.hpk.io/", "slurm-job.hpk.io/")
FLAGS = ("slurm.hpk.io/flags", "slurm-job.hpk.io/flags")
"""The flags annotation and its older spelling; the first one present counts."""
MPI_FLAGS = ("slurm.hpk.io/mpi-flags", "slurm-job.hpk.io/mpi-flags", "slurm-job.hpk.io/mpi-flag")
"""The annotations with mpirun's options, in every spelling in use; an empty value asks for nothing."""
EPHEMERAL = "spec.ephemeralContainers"

ONE_ID = (
    " is not supported (your account has no subordinate ids on this site, so a pod has one id only; ask your"
    " administrator for entries in /etc/subuid and /etc/subgid)"
)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What the cluster offers, for decisions about pods.

    Attributes:
        allocatable: The node object's ``cpu``, ``memory``, ``nvidia.com/gpu`` and so on.
        is_unschedulable: Whether the node is cordoned.
        trouble: Why the node is not ready; empty if it is.
        extended: Resources that others added to the node's allocatable and Slurm does not know.
        runtime_handlers: The handler of each RuntimeClass; None if unknown.
        capacity: Slurm's last answer about its nodes and partitions; None before the first.
        partition_names: All partitions, including those hidden from this user; empty if unknown.
        architectures: The compute nodes', as far as Slurm knows them.
        architecture: That of hpk.sif and all images, the control plane's own; empty if unknown.
        flags: The settings' sbatch options for every pod.
        has_subordinate_ids: Whether a pod can have more ids than the user's own.
        has_selinux: Whether the nodes' kernel labels processes.
        network: The mode of pods without hostNetwork; empty if unknown.
    """

    name: str
    allocatable: Mapping[str, Decimal] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[selectors.Taint, ...] = ()
    is_unschedulable: bool = False
    trouble: str = ""
    extended: Mapping[str, Decimal] = field(default_factory=dict)
    runtime_handlers: Mapping[str, str] | None = None
    capacity: slurm_model.ClusterCapacity | None = None
    partition_names: frozenset[str] = frozenset()
    architectures: Mapping[str, str] = field(default_factory=dict)
    architecture: str = ""
    flags: Mapping[str, str | None] = field(default_factory=dict)
    has_subordinate_ids: bool = True
    has_selinux: bool = False
    network: str = ""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A pod with the decisions derived from it; only this leaves the module on the pod's way to its job.

    Attributes:
        options: The sbatch options of the settings and of the pod's annotation, which override them.
        request: Its resource request to Slurm.
        network: Its mode: the host's if the pod asks for it, else the site's.
    """

    pod: v1.Pod
    options: Mapping[str, str | None]
    request: resources.Request
    lanes: tuple[lanes.Key, ...]
    network: str


def admit(raw: dict[str, Any], *, cluster: Cluster, pod: v1.Pod | None = None) -> Admitted:
    """Return the admitted pod if everything that it asks for is possible here.

    `raw` has every field that the API server has; `pod` is its decoded form, if it exists already.

    Raises:
        errors.PodRefused: Lists everything that is wrong, by name, with the kubelet's reason.
    """
    pod = pod or v1.pod(raw)
    problems = [*_unsupported(raw), *_annotations(pod)]
    try:
        admitted = derive(pod, cluster)
    except errors.PodRefused as error:
        admitted = None
        problems.append(str(error))
    problems += [*_security(pod, cluster), *_host_ports(pod, cluster), *_unknown_volumes(pod, pod.all_containers)]
    if not cluster.has_subordinate_ids:
        problems += _several_ids(pod)
    if admitted is None or problems:
        raise errors.PodRefused("; ".join(problems))
    if cluster.capacity is not None:
        _check_time(admitted.options, cluster.capacity)
        _check_architecture(admitted.options, cluster, cluster.capacity)
    return admitted


def derive(pod: v1.Pod, cluster: Cluster) -> Admitted:
    """Return the pod with its derived decisions, without checking that they are possible.

    Raises:
        errors.PodRefused: Its flags cannot be read.
    """
    options, request = flags.layered(cluster.flags, job_flags(pod)), resources.request(pod)
    return Admitted(
        pod=pod,
        options=options,
        request=request,
        lanes=lanes.keys(pod, options, request),
        network="host" if pod.spec.host_network else cluster.network,
    )


def refused(raw: dict[str, Any], *, cluster: Cluster) -> dict[str, str]:
    """Return, by name, why ephemeral containers are refused; the pod itself is not affected."""
    pod = v1.pod(raw)
    found = {}
    for index, container in enumerate(pod.spec.ephemeral_containers):
        path = f"{EPHEMERAL}[{index}]"
        problems = fields.unsupported(raw["spec"]["ephemeralContainers"][index], v1.EphemeralContainer, path)
        problems += [*_container_security(container, cluster), *_unknown_volumes(pod, [container])]
        if not cluster.has_subordinate_ids:
            problems += _different_ids(pod, [*pod.all_containers, container])
        if problems:
            found[container.name] = "; ".join(problems)
    return found


def doubt(admitted: Admitted, cluster: Cluster) -> str | None:
    """Return why Slurm will likely refuse the pod: a partition that it did not list lately. sbatch decides."""
    missing = [name for name in flags.partitions(admitted.options) if name not in cluster.partition_names]
    if not missing or not cluster.partition_names:
        return None
    shown = cluster.capacity.partitions if cluster.capacity else cluster.partition_names
    return f"invalid partition specified: {', '.join(missing)} (known: {', '.join(sorted(shown))})"


def unread(pod: v1.Pod) -> str | None:
    """Return a warning if the older flags annotation differs from the newer one, which counts; else None."""
    newer, older = (pod.metadata.annotations.get(key) for key in FLAGS)
    if None in (newer, older) or newer == older:
        return None
    return f"annotation {FLAGS[1]} is not read: the pod has {FLAGS[0]} too, which counts instead"


def job_flags(pod: v1.Pod) -> dict[str, str | None]:
    """Return the pod's own sbatch options.

    Raises:
        errors.PodRefused: They cannot be read, or would break the pod.
    """
    for key in FLAGS:
        if key in pod.metadata.annotations:
            return flags.parse(pod.metadata.annotations[key], source=f"annotation {key}")
    return {}


def _unsupported(raw: dict[str, Any]) -> list[str]:
    """Return the pod's unsupported fields; an ephemeral container's do not count against its pod."""
    return [sentence for sentence in fields.unsupported(raw["spec"]) if not sentence.startswith(EPHEMERAL)]


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
    return problems


def _security(pod: v1.Pod, cluster: Cluster) -> list[str]:
    problems = _selinux("spec.securityContext", pod.spec.security_context, cluster)
    for container in pod.all_containers:
        problems += _container_security(container, cluster)
    return problems


def _container_security(container: v1.Container, cluster: Cluster) -> list[str]:
    context = container.security_context
    where = f"container {container.name}: securityContext"
    problems = _selinux(where, context, cluster)
    if context.privileged:
        problems.append(f"{where}.privileged is not supported (a pod has no privilege over the compute node)")
    return problems


def _selinux(where: str, context: v1.SecurityContext | v1.PodSecurityContext, cluster: Cluster) -> list[str]:
    """Return the refusal of seLinuxOptions; a kernel without SELinux ignores them, as with a kubelet."""
    if not cluster.has_selinux or context.se_linux_options in {None, v1.SELinuxOptions()}:
        return []
    return [f"{where}.seLinuxOptions is not supported (processes of a job have the label that Slurm gave it)"]


def _host_ports(pod: v1.Pod, cluster: Cluster) -> list[str]:
    """Return the refusal of host ports: they exist on the node's network only, and nobody forwards them."""
    if pod.spec.host_network or cluster.network in {"", "host"}:
        return []
    named = [f"{c.name}: hostPort {port.host_port}" for c in pod.all_containers for port in c.ports if port.host_port]
    return [f"container {', '.join(named)} is not supported (hostNetwork: true is)"] if named else []


def _several_ids(pod: v1.Pod) -> list[str]:
    """Return what a pod with one id cannot have. A container's runAsUser may still give that id any number."""
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
    """Return mounts of volumes that do not exist; unknown volume sources are reported by name elsewhere."""
    names = {volume.name for volume in pod.spec.volumes}
    return [
        f"container {container.name}: volumeMount '{mount.name}' has no volume"
        for container in containers
        for mount in container.volume_mounts
        if mount.name not in names
    ]


def _check_architecture(
    options: Mapping[str, str | None], cluster: Cluster, capacity: slurm_model.ClusterCapacity
) -> None:
    """Refuse a partition none of whose nodes can run the image; a node that Slurm has not seen may match."""
    names = capacity.candidates(flags.partitions(options)).keys()
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


def _check_time(options: Mapping[str, str | None], capacity: slurm_model.ClusterCapacity) -> None:
    """Refuse a time limit beyond the partition's, with which the job would never start. A QOS may allow it."""
    text = options.get("time")
    names = capacity.candidates(flags.partitions(options))
    longest = [one.max_seconds for one in names.values() if one and one.max_seconds is not None]
    if not text or "qos" in options or len(longest) < len(names):
        return  # a partition without a limit, or an unknown one, may take the job
    seconds = parse.duration(text)
    if seconds is None or seconds > max(longest):
        limit = parse.time_text(max(longest))
        message = f"--time={text} is longer than partition {', '.join(names)} allows ({limit})"
        raise errors.PodRefused(f"Cannot use the job's flags: {message}", reason="InvalidFlags")
