"""What the admission webhook answers: the worker's own decisions, told to whoever creates the object.

From memory alone: the API server waits, and a kubelet under load must not ask Slurm for each pod.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.pods import admit, gate

if TYPE_CHECKING:
    from collections.abc import Callable

Object = dict[str, Any]


class Reviews:
    """Decides about pods, and warns about what makes pods."""

    def __init__(self, *, cluster: Callable[[], admit.Cluster], gate: gate.Gate) -> None:
        self._cluster, self._gate = cluster, gate

    def review(self, kind: str, raw: Object, *, old: Object | None = None) -> tuple[str | None, list[str]]:
        """Why the object must not be created (None: it may), and what its creator should know all the same.

        With ``old`` it is changed: of a pod, ephemeral containers are added.
        """
        if kind == "Pod":
            return self._pod(raw) if old is None else (self._ephemeral(raw, old), [])
        if any(owner.get("controller") for owner in raw["metadata"].get("ownerReferences") or ()):
            return None, []  # who applied what made it has been told
        return None, self._template(kind, raw)

    def _pod(self, raw: Object) -> tuple[str | None, list[str]]:
        cluster = self._cluster()
        try:
            pod = admit.admit(raw, cluster=cluster)
        except errors.PodRefused as error:
            return str(error), []
        doubt = admit.doubt(pod, cluster)
        if gate.controller(pod) is None:
            return None, [doubt] if doubt else []
        # A controller would replace the pod that sbatch refuses, without end; refused here, it takes its time.
        return doubt or self._gate.denial(gate.keys(pod, cluster.flags)), []

    def _ephemeral(self, raw: Object, old: Object) -> str | None:
        """About new ones only: those that are there cannot be taken away."""
        there = {container["name"] for container in old["spec"].get("ephemeralContainers") or ()}
        refused = admit.refused(raw, cluster=self._cluster())
        return "; ".join(why for name, why in refused.items() if name not in there) or None

    def _template(self, kind: str, raw: Object) -> list[str]:
        spec = raw["spec"].get("jobTemplate", raw).get("spec") or {}
        template = spec.get("template")
        if not template:
            return []
        meta = {**(template.get("metadata") or {}), "name": raw["metadata"]["name"]}
        pod = {"metadata": {**meta, "namespace": raw["metadata"]["namespace"]}, "spec": template["spec"]}
        cluster = self._cluster()
        try:
            problem = admit.doubt(admit.admit(pod, cluster=cluster), cluster)
        except errors.PodRefused as error:
            problem = str(error)
        return [f"pods of this {kind} will be refused: {problem}"] if problem else []
