"""RuntimeClasses and their handlers; pure.

One runtime starts all containers, whatever a class's handler is called. A handler that promises another one (gVisor,
Kata) must not be ignored, so its pods wait, as under a kubelet whose runtime does not know it
(instrumentedRuntimeService.RunPodSandbox fails; pkg/kubelet/kuberuntime/kuberuntime_sandbox.go).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpk.kube import informer, v1
    from hpk.pods import admit

HANDLERS = frozenset({"apptainer", "crun", "runc"})
"""Handlers that mean this runtime, or one that makes no difference to a pod."""


def handlers(classes: informer.Informer) -> dict[str, str] | None:
    """Return the handler of each RuntimeClass; None before they have been listed."""
    if not classes.synced.is_set():
        return None
    return {raw["metadata"]["name"]: raw["handler"] for raw in classes.objects.values()}


def trouble(pod: v1.Pod, cluster: admit.Cluster) -> str | None:
    """Return why the pod's RuntimeClass is not available, in the kubelet's words, or None if it is."""
    name = pod.spec.runtime_class_name
    if not name or cluster.runtime_handlers is None:
        return None
    handler = cluster.runtime_handlers.get(name)
    if handler is None:
        return f'Failed to create pod sandbox: RuntimeClass "{name}" not found'
    if handler in HANDLERS:
        return None
    known = ", ".join(sorted(HANDLERS))
    return f'Failed to create pod sandbox: no runtime for "{handler}" is configured (handlers: {known})'
