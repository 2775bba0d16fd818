"""The admission webhook's answers: the worker's and the binder's own decisions, given when an object is created.

They come from memory alone: the API server waits, and a kubelet under load must not ask Slurm for each pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.pods import admit, bind, fit, lanes, runtime, schedule, warning
from hpk.slurm import flags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk.kube import v1
    from hpk.pods import gate

Object = dict[str, Any]
RESIZE = (
    "pods cannot be resized: a Slurm job's CPUs and memory are fixed once it is submitted; create the pod anew with "
    "other resources"
)


class Reviews:
    """The review of pods, with warnings about objects that create pods."""

    def __init__(self, *, cluster: Callable[[], admit.Cluster], gate: gate.Gate, around: schedule.Surroundings) -> None:
        self._cluster, self._gate, self._around = cluster, gate, around

    def review(
        self, kind: str, raw: Object, *, old: Object | None = None, part: str = ""
    ) -> tuple[str | None, list[str]]:
        """Return why the object is rejected (None if it is not), and warnings for its creator.

        `old` is the existing object, None for a creation; `part` is the changed subresource, or empty.
        """
        if kind == "Pod":
            return self._pod(raw) if old is None else (self._change(raw, old, part), [])
        if any(owner.get("controller") for owner in raw["metadata"].get("ownerReferences") or ()):
            return None, []  # whoever applied the owner has been warned
        return None, self._template(kind, raw)

    def _pod(self, raw: Object) -> tuple[str | None, list[str]]:
        cluster = self._cluster()
        try:
            asked = admit.admit(raw, cluster=cluster)
            if asked.pod.spec.node_name == cluster.name:
                fit.check(asked, cluster)
        except errors.PodRefused as error:
            return str(error), []
        doubt = admit.doubt(asked, cluster)
        if lanes.controller(asked.pod) is None:
            return None, [*([doubt] if doubt else []), *self._warnings(asked, cluster)]
        # A controller would replace a pod that sbatch refuses, endlessly; a pod rejected here makes it back off.
        return doubt or self._gate.denial(asked.lanes), []

    def _warnings(self, asked: admit.Admitted, cluster: admit.Cluster) -> list[str]:
        """Return warnings about ignored parts of the pod, and about what keeps it from running."""
        pod = asked.pod
        shortened = warning.shortened(pod, asked.options, cluster.capacity)
        found = [text for text in (admit.unread(pod), shortened, _held_nodes(asked.options)) if text]
        if pod.spec.scheduling_gates:
            return found  # whoever set them knows
        if pod.spec.node_name:
            found += [_no_such_node(pod, cluster)] if pod.spec.node_name != cluster.name else []
        elif pod.spec.scheduler_name not in {"", bind.SCHEDULER}:
            found.append(bind.other_scheduler(pod))
        elif hindrance := schedule.hindrance(asked, cluster, self._around):
            found.append(f"the pod stays Pending for now: {hindrance.message}")
        missing = runtime.trouble(pod, cluster)
        return [*found, *([f"the pod stays Pending for now: {missing}"] if missing else [])]

    def _change(self, raw: Object, old: Object, part: str) -> str | None:
        if part == "resize":
            return RESIZE if _resources(raw) != _resources(old) else None
        if part == "ephemeralcontainers":
            return self._ephemeral(raw, old)
        if old["spec"].get("nodeName"):
            return _of_bound(raw, old)
        try:
            admit.admit(raw, cluster=self._cluster())  # gates, selectors and annotations can still change
        except errors.PodRefused as error:
            return str(error) if _is_worse(str(error), old, self._cluster()) else None
        return None

    def _ephemeral(self, raw: Object, old: Object) -> str | None:
        """Return why new ephemeral containers are rejected; existing ones cannot be removed."""
        there = {container["name"] for container in old["spec"].get("ephemeralContainers") or ()}
        refused = admit.refused(raw, cluster=self._cluster())
        return "; ".join(why for name, why in refused.items() if name not in there) or None

    def _template(self, kind: str, raw: Object) -> list[str]:
        spec = raw["spec"].get("jobTemplate", raw).get("spec") or {}
        template = spec.get("template")
        if not template:
            return []
        meta = {**(template.get("metadata") or {}), "name": raw["metadata"]["name"]}
        made = {"metadata": {**meta, "namespace": raw["metadata"]["namespace"]}, "spec": template["spec"]}
        cluster = self._cluster()
        try:
            asked = admit.admit(made, cluster=cluster)
        except errors.PodRefused as error:
            return [f"pods of this {kind} will be refused: {error}"]
        if doubt := admit.doubt(asked, cluster):
            return [f"pods of this {kind} will be refused: {doubt}"]
        return [f"pods of this {kind}: {text}" for text in self._warnings(asked, cluster)]


def _held_nodes(options: Mapping[str, str | None]) -> str | None:
    """Return a warning about a job's other nodes; no rejection, because a container may start programs there."""
    if option := flags.several_nodes(options):
        return f"{option}: the pod's containers run on the first of its job's nodes; the others are held for it"
    tasks = options.get("ntasks") or ""
    if "nodes" not in options and tasks.isdecimal() and int(tasks) > 1:
        return (
            f"--ntasks={tasks}: Slurm may take several nodes for that, and the pod's containers run on the first of "
            "them; add --nodes=1, or ask for CPUs instead"
        )
    return None


def _of_bound(raw: Object, old: Object) -> str | None:
    """Return why a bound pod cannot be changed so: its job was made from the old annotations."""
    for key in (*admit.FLAGS, *admit.MPI_FLAGS):
        before, after = ((one["metadata"].get("annotations") or {}).get(key) for one in (old, raw))
        if before != after:
            return (
                f"annotation {key} cannot be changed now: the pod's Slurm job is made from what it was; delete the pod "
                "and create it anew"
            )
    return None


def _no_such_node(pod: v1.Pod, cluster: admit.Cluster) -> str:
    name = pod.spec.node_name
    return (
        f"the pod will not run: there is no node {name}, for all of Slurm is the node {cluster.name}; leave nodeName "
        f"out, and choose among Slurm's nodes by --nodelist={name} in the annotation {admit.FLAGS[0]}"
    )


def _is_worse(problem: str, old: Object, cluster: admit.Cluster) -> bool:
    """Return whether a change causes the problem: an existing one must not block a label or finalizer."""
    try:
        admit.admit(old, cluster=cluster)
    except errors.PodRefused as error:
        return str(error) != problem
    return True


def _resources(raw: Object) -> list[tuple[str, Any]]:
    spec = raw["spec"]
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    return [("", spec.get("resources")), *((c["name"], c.get("resources")) for c in containers)]
