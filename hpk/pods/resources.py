"""A pod's resource request to Slurm: pure arithmetic on requests and limits.

The effective request is Kubernetes': the larger of the init phase (each init container with the sidecars started before
it) and the sum of all app containers and sidecars (KEP-753). Slurm has no burst: memory is the limit, else the request,
because nothing exceeds a job's allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from hpk.kube import quantity

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk.kube import v1

GPU = "nvidia.com/gpu"
OVERHEAD_BYTES = 96 << 20
"""Measured: the agent, crun, squashfuse and the Apptainer starter of one pod."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The resource request of one pod's job.

    Attributes:
        cpus: Whole CPUs, at least 1.
        memory_bytes: With the overhead; None if the pod names none and Slurm's default applies.
    """

    cpus: int
    memory_bytes: int | None
    gpus: int


def request(pod: v1.Pod) -> Request:
    """Return the pod's effective request for sbatch, with its RuntimeClass's overhead."""
    memory = _of_pod(pod, "memory", is_limit_first=True)
    return Request(
        cpus=max(1, quantity.ceiling(effective(pod, "cpu"))),
        # A RuntimeClass's overhead alone is no memory request for the containers.
        memory_bytes=quantity.ceiling(memory + _overhead(pod, "memory")) + OVERHEAD_BYTES if memory else None,
        gpus=quantity.ceiling(_of_pod(pod, GPU, is_limit_first=True)),
    )


def memory_limit(pod: v1.Pod) -> int | None:
    """Return the memory limit of the whole pod; None if a container has none."""
    if (own := pod.spec.resources.limits.get("memory")) is not None:
        return quantity.ceiling(quantity.parse(own))
    if any("memory" not in container.resources.limits for container in pod.all_containers):
        return None
    return quantity.ceiling(_of_pod(pod, "memory", is_limit_first=True))


def effective(pod: v1.Pod, name: str) -> Decimal:
    """Return how much of a resource the pod requests; a limit replaces a missing request."""
    return _of_pod(pod, name, is_limit_first=False) + _overhead(pod, name)


def _of_pod(pod: v1.Pod, name: str, *, is_limit_first: bool) -> Decimal:
    """Return the pod's own amount (KEP-2837), else what its containers take at a time."""
    own = pod.spec.resources
    if name in own.requests or name in own.limits:
        return _amount(own, name, is_limit_first=is_limit_first)
    return peak(pod, lambda c: _amount(c.resources, name, is_limit_first=is_limit_first))


def names(pod: v1.Pod) -> set[str]:
    """Return the resources that the pod names."""
    given = [pod.spec.resources, *(container.resources for container in pod.all_containers)]
    parts = [part for one in given for part in (one.requests, one.limits)]
    return {name for part in (*parts, pod.spec.overhead) for name in part}


def peak(pod: v1.Pod, amount: Callable[[v1.Container], Decimal]) -> Decimal:
    """Return the peak over time of the sum of ``amount`` over the pod's containers."""
    sidecars, most = Decimal(0), Decimal(0)
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            sidecars += amount(container)
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + amount(container))
    return max(most, sidecars + sum((amount(c) for c in pod.spec.containers), Decimal(0)))


def _overhead(pod: v1.Pod, name: str) -> Decimal:
    return quantity.parse(pod.spec.overhead.get(name, 0))


def _amount(given: v1.Resources, name: str, *, is_limit_first: bool) -> Decimal:
    first, second = (given.limits, given.requests) if is_limit_first else (given.requests, given.limits)
    return quantity.parse(first.get(name, second.get(name, 0)))
