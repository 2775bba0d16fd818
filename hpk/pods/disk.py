"""A pod's disk limits, in the kubelet's order and words; pure.

Source: localStorageEviction in pkg/kubelet/eviction/eviction_manager.go of Kubernetes 1.37, including the texts'
trailing blank. An emptyDir in memory is excluded: its file system enforces the limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.kube import quantity
from hpk.pods import resources

if TYPE_CHECKING:
    from decimal import Decimal

    from hpk import records
    from hpk.kube import v1

NAME = "ephemeral-storage"


def limits(pod: v1.Pod) -> list[records.DiskLimit]:
    """Return the pod's disk limits; without any, nothing is measured."""
    return [*_volumes(pod), *_pod(pod), *_containers(pod)]


def _volumes(pod: v1.Pod) -> list[records.DiskLimit]:
    found: list[records.DiskLimit] = []
    for volume in pod.spec.volumes:
        directory = volume.empty_dir
        limit = directory.size_limit if directory and directory.medium != "Memory" else None
        if limit is not None and (size := quantity.parse(limit)) > 0:
            message = f'Usage of EmptyDir volume "{volume.name}" exceeds the limit "{limit}". '
            found.append({"kind": "volume", "name": volume.name, "bytes": quantity.ceiling(size), "message": message})
    return found


def _pod(pod: v1.Pod) -> list[records.DiskLimit]:
    if not any(NAME in container.resources.limits for container in pod.all_containers):
        return []
    total = resources.peak(pod, _limit)
    message = f"Pod ephemeral local storage usage exceeds the total limit of containers {quantity.text(total)}. "
    return [{"kind": "pod", "name": "", "bytes": quantity.ceiling(total), "message": message}]


def _containers(pod: v1.Pod) -> list[records.DiskLimit]:
    found: list[records.DiskLimit] = []
    for container in pod.all_containers:
        is_short = container in pod.spec.init_containers and container.restart_policy != "Always"
        if (limit := _limit(container)) > 0 and not is_short:
            text = container.resources.limits[NAME]
            message = f'Container {container.name} exceeded its local ephemeral storage limit "{text}". '
            size = quantity.ceiling(limit)
            found.append({"kind": "container", "name": container.name, "bytes": size, "message": message})
    return found


def _limit(container: v1.Container) -> Decimal:
    return quantity.parse(container.resources.limits.get(NAME, 0))
