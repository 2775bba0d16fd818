"""The lanes of the gate that a pod passes on its way to sbatch; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.kube import v1
    from hpk.pods import resources

Key = tuple[str, ...]


def keys(pod: v1.Pod, options: Mapping[str, str | None], request: resources.Request) -> tuple[Key, ...]:
    """Return the pod's lanes, in the order in which it enters them."""
    limits = ("limits", *(options.get(name) or "" for name in ("account", "partition", "qos")))
    owner = controller(pod)
    if owner is None:
        return (limits,)
    alike = (owner.uid, repr(sorted(options.items(), key=str)), repr(request))
    return (("refused", *alike), ("failed", *alike), limits)


def controller(pod: v1.Pod) -> v1.OwnerReference | None:
    """Return the controller that replaces a failed pod, or None."""
    return next((owner for owner in pod.metadata.owner_references if owner.controller), None)
