"""Which limits of the node's disk a pod has, as the kubelet reads its spec."""

from __future__ import annotations

from typing import Any

from hpk.kube import v1
from hpk.pods import disk


def limits(*, volumes: list[Any] | None = None, inits: list[Any] | None = None, **apps: str | None) -> list[Any]:
    """Of a pod whose containers, by name, have these limits of ephemeral-storage."""
    containers = [container(name, limit) for name, limit in apps.items()]
    spec = {"containers": containers, "initContainers": inits or [], "volumes": volumes or []}
    return [tuple(one.values()) for one in disk.limits(v1.pod({"metadata": {"name": "p"}, "spec": spec}))]


def container(name: str, limit: str | None = None, **more: Any) -> dict[str, Any]:
    """A container."""
    return {"name": name, "resources": {"limits": {"ephemeral-storage": limit} if limit else {}}, **more}


def test_a_pod_without_limits_is_not_measured() -> None:
    """Neither are emptyDirs without a limit, in memory, or with a limit of nothing, which is none."""
    volumes = [
        {"name": "plain", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "zero", "emptyDir": {"sizeLimit": 0}},
        {"name": "host", "hostPath": {"path": "/x"}},
    ]
    assert limits(volumes=volumes, c=None) == []


def test_an_emptydir_has_its_own_limit() -> None:
    """In the kubelet's words, with the limit as it was written."""
    (found,) = limits(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1.5Ki"}}], c=None)
    assert found == ("volume", "v", 1536, 'Usage of EmptyDir volume "v" exceeds the limit "1.5Ki". ')


def test_containers_have_limits_of_their_own_and_together() -> None:
    """The pod's is the sum of those that have one; one without still counts towards it."""
    pod, one, two = limits(a="1Gi", b="512Mi", c=None)
    total = "Pod ephemeral local storage usage exceeds the total limit of containers 1536Mi. "
    assert pod == ("pod", "", 3 << 29, total)
    assert one == ("container", "a", 1 << 30, 'Container a exceeded its local ephemeral storage limit "1Gi". ')
    assert two[:3] == ("container", "b", 1 << 29)


def test_an_init_container_counts_for_the_pod_only() -> None:
    """It is over when the others run; a sidecar is not."""
    inits = [container("i", "3Gi"), container("s", "1Gi", restartPolicy="Always")]
    found = limits(inits=inits, a="1Gi")
    assert [one[:3] for one in found] == [
        ("pod", "", 3 << 30),
        ("container", "s", 1 << 30),
        ("container", "a", 1 << 30),
    ]
