"""A pod's requests become its job's resources as Kubernetes adds them up."""

from __future__ import annotations

from typing import Any

import pytest

from hpk.kube import v1
from hpk.pods import resources

MI = 1 << 20


def request(*apps: dict[str, Any], inits: tuple[dict[str, Any], ...] = ()) -> resources.Request:
    """The request of a pod of these containers."""
    spec = {
        "containers": [{"name": f"c{i}", **c} for i, c in enumerate(apps)],
        "initContainers": [{"name": f"i{i}", **c} for i, c in enumerate(inits)],
    }
    return resources.request(v1.pod({"metadata": {"name": "p"}, "spec": spec}))


def needs(cpu: str = "", memory: str = "", **more: Any) -> dict[str, Any]:
    """A container that requests this."""
    amounts = {key: value for key, value in (("cpu", cpu), ("memory", memory)) if value}
    return {"resources": {"requests": amounts}, **more}


@pytest.mark.parametrize(
    ("cpus", "expected"), [((), 1), (("10m",), 1), (("1", "500m"), 2), (("1500m", "1500m"), 3), (("0",), 1)]
)
def test_cpus_are_added_and_rounded_up_and_never_zero(cpus: tuple[str, ...], expected: int) -> None:
    """Slurm counts whole CPUs, and a job without one does not start."""
    assert request(*(needs(cpu) for cpu in cpus), *([{}] if not cpus else [])).cpus == expected


def test_init_containers_count_as_the_largest_not_as_a_sum() -> None:
    """They run one after another, before the others."""
    small, large = needs("200m", "64Mi"), needs("3", "1Gi")
    assert request(needs("1", "200Mi"), inits=(small, small)).cpus == 1
    assert request(needs("1", "200Mi"), inits=(small, large)).cpus == 3


def test_sidecars_run_beside_all_that_follows() -> None:
    """KEP-753: an init container with restartPolicy Always counts in both phases."""
    side = needs("1", restartPolicy="Always")
    assert request(needs("1"), inits=(side, needs("1500m"))).cpus == 3
    assert request(needs("4"), inits=(side, needs("1"))).cpus == 5


def test_memory_is_the_limit_where_there_is_one() -> None:
    """Nothing bursts beyond a job's allocation."""
    both = {"resources": {"requests": {"memory": "100Mi"}, "limits": {"memory": "300Mi"}}}
    assert request(both, needs(memory="100Mi")).memory_bytes == 400 * MI + resources.OVERHEAD_BYTES
    assert request({}).memory_bytes is None


def test_gpus_come_from_limits() -> None:
    """An extended resource is set in limits."""
    assert request({"resources": {"limits": {"nvidia.com/gpu": "2"}}}, {}).gpus == 2


def test_what_the_pod_itself_names_counts_instead_of_its_containers() -> None:
    """Pod-level resources: the limit of memory, the request of CPUs."""
    own = {"requests": {"cpu": "3", "memory": "1Gi"}, "limits": {"cpu": "8", "memory": "2Gi"}}
    pod = v1.pod(
        {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", **needs("1", "9Gi")}], "resources": own}}
    )
    assert resources.request(pod) == resources.Request(
        cpus=3, memory_bytes=(2 << 30) + resources.OVERHEAD_BYTES, gpus=0
    )
    assert resources.effective(pod, "memory") == 1 << 30
    assert resources.names(pod) == {"cpu", "memory"}


def test_a_runtime_classes_overhead_is_added() -> None:
    """But it is no memory for a pod that names none: Slurm's default applies to that."""
    spec = {"containers": [{"name": "c", **needs("1")}], "overhead": {"cpu": "1500m", "memory": "8Mi"}}
    made = resources.request(v1.pod({"metadata": {"name": "p"}, "spec": spec}))
    assert (made.cpus, made.memory_bytes) == (3, None)
    spec["containers"] = [{"name": "c", **needs("1", "1Gi")}]
    made = resources.request(v1.pod({"metadata": {"name": "p"}, "spec": spec}))
    assert made.memory_bytes == (1 << 30) + 8 * MI + resources.OVERHEAD_BYTES


@pytest.mark.parametrize(
    ("apps", "inits", "whole", "limit"),
    [
        (["64Mi", "32Mi"], [], None, 96 * MI),
        (["64Mi"], ["256Mi"], None, 256 * MI),
        (["64Mi", None], [], None, None),
        (["64Mi"], [None], None, None),
        ([None], [], "1Gi", 1024 * MI),
        ([None], [], None, None),
    ],
)
def test_a_pod_s_memory_is_limited_if_all_its_containers_are(
    apps: list[str | None], inits: list[str | None], whole: str | None, limit: int | None
) -> None:
    """Or if the pod is, as a whole."""

    def made(prefix: str, limits: list[str | None]) -> list[dict[str, Any]]:
        return [
            {"name": f"{prefix}{number}", "resources": {"limits": {"memory": one}} if one else {}}
            for number, one in enumerate(limits)
        ]

    spec: dict[str, Any] = {"containers": made("c", apps), "initContainers": made("i", inits)}
    if whole:
        spec["resources"] = {"limits": {"memory": whole}}
    assert resources.memory_limit(v1.pod({"metadata": {"name": "p"}, "spec": spec})) == limit
