"""kube-scheduler's filters for a pod and our one node; pure.

The node stands for all of Slurm, which queues jobs itself. So a scheduler's question is split: this module checks
whether the pod may go to the node (cordon, taints, labels, other pods, their number) and whether any compute node is
large enough. Slurm decides when CPUs, memory and GPUs are free: see ADR 0016.

Filters, order and words follow pkg/scheduler/framework/plugins of Kubernetes 1.37: the first that fails is reported.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpk.kube import selectors, v1
from hpk.pods import fit, resources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hpk.kube import informer
    from hpk.pods import admit, occupants

UNSCHEDULABLE = selectors.Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint that a pod must tolerate to go to a cordoned node."""

Object = dict[str, Any]


class Wants(enum.Enum):
    """What must change before a pod can be placed."""

    NODE = "node"
    """The node, or Slurm's capacity."""
    ROOM = "room"
    """Any other pod must end."""
    PODS = "pods"
    """Certain pods must end, or appear."""


@dataclass(frozen=True, kw_only=True)
class Hindrance:
    """Why a pod is not bound.

    Attributes:
        wants: What must change.
        reasons: In kube-scheduler's words.
        hint: An additional sentence about the remedy, or empty.
    """

    wants: Wants
    reasons: tuple[str, ...]
    hint: str = ""

    @property
    def message(self) -> str:
        """The text of the condition and the event."""
        text = ", ".join(sorted(f"1 {reason}" for reason in self.reasons))
        return f"0/1 nodes are available: {text}." + (f" {self.hint}" if self.hint else "")


NO_NODE = "no nodes available to schedule pods"


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What else is on the node.

    Attributes:
        namespaces: Returns the labels of each namespace, for affinity terms that select namespaces by label.
    """

    others: occupants.Occupants
    namespaces: Callable[[], Mapping[str, Mapping[str, str]]] = field(default=dict)


def labels_of(namespaces: informer.Informer) -> dict[str, dict[str, str]]:
    """Return each namespace's labels."""
    return {raw["metadata"]["name"]: raw["metadata"].get("labels") or {} for raw in namespaces.objects.values()}


def hindrance(asked: admit.Admitted, cluster: admit.Cluster, around: Surroundings) -> Hindrance | None:
    """Return why the pod cannot be bound to the node now, or None if it can."""
    pod = asked.pod
    return (
        _cordon(pod, cluster)
        or _taints(pod, cluster)
        or _node_affinity(pod, cluster)
        or _resources(asked, cluster, around)
        or _spread(pod, cluster, around)
        or _pod_affinity(pod, cluster, around)
    )


def _cordon(pod: v1.Pod, cluster: admit.Cluster) -> Hindrance | None:
    if not cluster.is_unschedulable or any(one.tolerates(UNSCHEDULABLE) for one in pod.spec.tolerations):
        return None
    hint = f"The node is cordoned: kubectl uncordon {cluster.name} lets pods run again."
    return Hindrance(wants=Wants.NODE, reasons=("node(s) were unschedulable",), hint=hint)


def _taints(pod: v1.Pod, cluster: admit.Cluster) -> Hindrance | None:
    found = selectors.untolerated(list(cluster.taints), pod.spec.tolerations)
    if not found:
        return None
    hint = f"Not tolerated by the pod: {', '.join(taint.text for taint in found)}."
    if cluster.trouble:
        hint += f" The node is not ready: {cluster.trouble}."
    return Hindrance(wants=Wants.NODE, reasons=("node(s) had untolerated taint(s)",), hint=hint)


def _node_affinity(pod: v1.Pod, cluster: admit.Cluster) -> Hindrance | None:
    what = fit.unmatched(pod, cluster)
    if what is None:
        return None
    hint = (
        f"Node {cluster.name}, which is all of Slurm, does not match {what}; to choose among Slurm's nodes, use "
        "flags such as --constraint in the annotation slurm.hpk.io/flags."
    )
    return Hindrance(wants=Wants.NODE, reasons=("node(s) didn't match Pod's node affinity/selector",), hint=hint)


def _resources(asked: admit.Admitted, cluster: admit.Cluster, around: Surroundings) -> Hindrance | None:
    """Return what is too large for every compute node, or is used up among the resources unknown to Slurm."""
    reasons, hints = list[str](), list[str]()
    wants = Wants.NODE
    most = cluster.allocatable.get("pods")
    if most is not None and len(around.others) + 1 > most:
        wants = Wants.ROOM
        reasons.append("Too many pods")
        hints.append(f"The node takes {most} pods (HPK_MAX_PODS).")
    for short in fit.shortages(asked, cluster):
        reasons.append(f"Insufficient {short.name}")
        hints.append(f"{short.name}: {short.wanted} requested, {short.offered} offered{short.where}.")
    for name, offered in cluster.extended.items():
        wanted = resources.effective(asked.pod, name)
        if not wanted or wanted > offered:
            continue  # nothing is requested, or more than exists, which is reported above
        if wanted > offered - around.others.taken(name):
            wants = Wants.PODS
            reasons.append(f"Insufficient {name}")
            # The amount taken is left out: else each pod's end would change the message of all that wait.
            hints.append(f"{name}: {wanted} requested, and pods have taken too much of the node's {offered}.")
    return Hindrance(wants=wants, reasons=tuple(reasons), hint=" ".join(hints)) if reasons else None


def _spread(pod: v1.Pod, cluster: admit.Cluster, around: Surroundings) -> Hindrance | None:
    """Return the first constraint that cannot be met on one node, which is one domain without skew."""
    for constraint in pod.spec.topology_spread_constraints:
        if constraint.when_unsatisfiable != "DoNotSchedule":
            continue
        reason = "node(s) didn't match pod topology spread constraints"
        if constraint.topology_key not in cluster.labels:
            return Hindrance(wants=Wants.NODE, reasons=(f"{reason} (missing required label)",))
        if (constraint.min_domains or 1) < 2:  # noqa: PLR2004 - there is one
            continue
        selector = constraint.label_selector
        alike = sum(
            raw["metadata"].get("namespace") == pod.metadata.namespace and _selects(selector, raw["metadata"])
            for raw in around.others.pods()
            if not raw["metadata"].get("deletionTimestamp")
        )
        mine = selector is not None and selector.matches(pod.metadata.labels)
        if alike + mine > constraint.max_skew:
            return Hindrance(wants=Wants.PODS, reasons=(reason,), hint="There is one node, so one domain.")
    return None


def _pod_affinity(pod: v1.Pod, cluster: admit.Cluster, around: Surroundings) -> Hindrance | None:
    hint = (
        "All pods are on the one node; to keep jobs apart or together on Slurm's nodes, use flags such as --exclusive."
    )
    wanted = pod.spec.affinity.pod_affinity
    terms = wanted.required_during_scheduling_ignored_during_execution if wanted else []
    if terms and not _is_together(pod, terms, cluster, around):
        return Hindrance(wants=Wants.PODS, reasons=("node(s) didn't match pod affinity rules",), hint=hint)
    others = [raw["metadata"] for raw in around.others.pods()] if _apart(pod) else []
    for term in _apart(pod):
        if term.topology_key in cluster.labels and any(_meets(term, pod, meta, around) for meta in others):
            return Hindrance(wants=Wants.PODS, reasons=("node(s) didn't match pod anti-affinity rules",), hint=hint)
    meta = {"namespace": pod.metadata.namespace, "labels": pod.metadata.labels}
    for other in around.others.apart():
        for term in _apart(other):
            if term.topology_key in cluster.labels and _meets(term, other, meta, around):
                reason = "node(s) didn't satisfy existing pods anti-affinity rules"
                return Hindrance(wants=Wants.PODS, reasons=(reason,), hint=f"{hint} It is pod {other.where}'s rule.")
    return None


def _is_together(
    pod: v1.Pod, terms: Iterable[selectors.PodAffinityTerm], cluster: admit.Cluster, around: Surroundings
) -> bool:
    """Return whether a pod that meets all terms is on the node; the first pod of a self-affine group may start."""
    terms = list(terms)
    if any(term.topology_key not in cluster.labels for term in terms):
        return False
    if any(all(_meets(term, pod, raw["metadata"], around) for term in terms) for raw in around.others.pods()):
        return True
    mine = {"namespace": pod.metadata.namespace, "labels": pod.metadata.labels}
    is_any = any(_meets(term, pod, raw["metadata"], around) for term in terms for raw in around.others.pods())
    return not is_any and all(_meets(term, pod, mine, around) for term in terms)


def _apart(pod: v1.Pod) -> list[selectors.PodAffinityTerm]:
    rules = pod.spec.affinity.pod_anti_affinity
    return rules.required_during_scheduling_ignored_during_execution if rules else []


def _meets(term: selectors.PodAffinityTerm, owner: v1.Pod, meta: Object, around: Surroundings) -> bool:
    """Return whether the owner's term selects a pod with this metadata."""
    namespace = meta.get("namespace", "")
    named = namespace in term.namespaces
    if term.namespace_selector is not None:
        is_all = term.namespace_selector == selectors.LabelSelector()
        named = named or is_all or term.namespace_selector.matches(around.namespaces().get(namespace, {}))
    elif not term.namespaces:
        named = namespace == owner.metadata.namespace
    return named and _selects(term.label_selector, meta)


def _selects(selector: selectors.LabelSelector | None, meta: Object) -> bool:
    """Return whether the selector matches; a missing one matches nothing."""
    return selector is not None and selector.matches(meta.get("labels") or {})
