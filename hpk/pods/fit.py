"""Whether the node has the labels and sizes that a pod asks for; pure.

Before a pod is bound, a mismatch makes it wait (``hpk.pods.schedule``). A pod that was put on the node directly is
rejected, as a kubelet does (pkg/kubelet/lifecycle/predicate.go, canAdmitPod).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from hpk import errors
from hpk.pods import resources
from hpk.slurm import flags

if TYPE_CHECKING:
    from hpk.kube import v1
    from hpk.pods import admit
    from hpk.slurm import model as slurm_model

NODE_RESOURCES = {
    "cpu": frozenset({"cpus-per-task", "overcommit"}),
    "memory": frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}),
    resources.GPU: frozenset({"gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "nodes"}),
}
"""What one job on one node can have, each with the sbatch options that override it."""
UNSET_MEMORY_BYTES = 1 << 20
"""Slurm's value for a node whose memory is not configured."""


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """A resource of which a pod wants more than it could ever have; ``where`` follows the number in a sentence."""

    name: str
    wanted: Decimal | int
    offered: Decimal | int
    where: str = ""


def check(admitted: admit.Admitted, cluster: admit.Cluster) -> None:
    """Check a pod that is bound to the node.

    Raises:
        errors.PodRefused: It does not fit; with the kubelet's reason and words.
    """
    if (what := unmatched(admitted.pod, cluster)) is not None:
        message = f"Pod was rejected: Predicate NodeAffinity failed: node {cluster.name} does not match {what}"
        raise errors.PodRefused(message, reason="NodeAffinity")
    for short in shortages(admitted, cluster):
        what = f"{short.name}, requested: {short.wanted}, capacity: {short.offered}"
        where = f" ({short.where.removeprefix(' by ')})" if short.where else ""
        message = f"Pod was rejected: Node didn't have enough resource: {what}{where}"
        raise errors.PodRefused(message, reason=f"OutOf{short.name}")


def unmatched(pod: v1.Pod, cluster: admit.Cluster) -> str | None:
    """Return which of the pod's node selector and required affinity the node's labels do not match, or None."""
    wrong = [f"{key}={value}" for key, value in pod.spec.node_selector.items() if cluster.labels.get(key) != value]
    if wrong:
        return f"nodeSelector {', '.join(wrong)}"
    affinity = pod.spec.affinity.node_affinity
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is not None and not required.matches(cluster.labels, name=cluster.name):
        return "the required node affinity"
    return None


def shortages(admitted: admit.Admitted, cluster: admit.Cluster) -> list[Shortage]:
    """Return what exceeds any compute node, or the whole cluster, whether it is free or not."""
    pod, capacity = admitted.pod, cluster.capacity
    is_measured = capacity is not None and bool(capacity.nodes)
    found = _of_nodes(admitted, capacity) if capacity is not None else []
    for name in sorted(resources.names(pod)):
        if is_measured and name in NODE_RESOURCES:
            continue  # measured against single nodes, including drained ones
        wanted = resources.effective(pod, name)
        offered = cluster.allocatable.get(name, cluster.extended.get(name))
        if offered is None and name in {"cpu", "memory", "ephemeral-storage"}:
            continue  # not known yet: the node has just started
        if wanted > (offered or Decimal(0)):
            found.append(Shortage(name=name, wanted=wanted, offered=offered or 0))
    return found


def _of_nodes(admitted: admit.Admitted, capacity: slurm_model.ClusterCapacity) -> list[Shortage]:
    """Return what no node of the partition has, usable or not: sbatch would refuse it permanently."""
    options, asked = admitted.options, admitted.request
    names = capacity.candidates(flags.partitions(options))
    is_known = None not in names.values()
    nodes = [node for node in capacity.nodes.values() if not is_known or node.partitions & names.keys()]
    if not nodes:
        return []
    measures = {
        "cpu": (asked.cpus, max(node.cpus for node in nodes)),
        "memory": (asked.memory_bytes or 0, max(node.memory_bytes for node in nodes)),
        resources.GPU: (asked.gpus, max(node.gres.get("gpu", 0) for node in nodes)),
    }
    where = f" by the largest node of partition {', '.join(sorted(names))}" if is_known else " by the largest node"
    return [
        Shortage(name=name, wanted=wanted, offered=largest, where=where)
        for name, (wanted, largest) in measures.items()
        if wanted > largest
        and not (name == "memory" and largest <= UNSET_MEMORY_BYTES)
        and not options.keys() & NODE_RESOURCES[name]
    ]
