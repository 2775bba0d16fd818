"""What a pod may take of memory and disk, on a real Slurm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import cluster
from tests.e2e import conftest
from tests.site.hpksite import cgroups

pytestmark = pytest.mark.cluster

FORKS = """
x=$(head -c 40000000 /dev/zero | tr '\\0' x)
for i in 1 2 3 4 5 6 7 8; do (sleep 20; echo child) & done
echo ready; wait
"""
"""Nine processes that share 40 MB: 360 MB if each counts for itself."""


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> str:
    """A manifest of busybox containers."""
    made = [{"image": "${REGISTRY}/busybox:1", **one} for one in containers]
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": made, **spec}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})


def limited(name: str, memory: str, script: str) -> dict[str, Any]:
    """A container with a memory limit."""
    return {"name": name, "command": ["sh", "-c", script], "resources": {"limits": {"memory": memory}}}


def ended(found: dict[str, Any]) -> dict[str, str]:
    """How each container ended."""
    return {one["name"]: one["state"]["terminated"]["reason"] for one in found["status"]["containerStatuses"]}


def test_memory_is_counted_as_the_kernel_would(space: conftest.Namespace) -> None:
    """Pages that forked processes share count once; who holds too much is OOMKilled alone."""
    greedy = limited("greedy", "48Mi", "sleep 3; tail /dev/zero")
    room = limited("room", "2Gi", "true")  # Slurm's own accounting may count shared pages for each process
    space.apply(pod("p", limited("forks", "250Mi", FORKS), greedy, room))
    conftest.until(lambda: space.phase("p") in {"Succeeded", "Failed"})
    assert ended(space.get("pod", "p")) == {
        "forks": "Completed",
        "greedy": "OOMKilled",
        "room": "Completed",
    }
    assert space.kubectl("logs", "p", "-c", "forks").split() == ["ready", *["child"] * 8]


@pytest.mark.skipif(not (cluster.PROFILE.cgroups and cgroups.are_lent()), reason="needs jobs confined by cgroups")
def test_a_pod_goes_on_without_a_child_that_the_kernel_killed(space: conftest.Namespace) -> None:
    """Slurm calls the job OUT_OF_MEMORY; the pod came to its own end, and says so. One that died of it is OOMKilled."""
    request = {"resources": {"requests": {"memory": "32Mi"}}}
    eat = "tail /dev/zero"
    space.apply(pod("goes-on", {"name": "c", "command": ["sh", "-c", f"{eat}; echo child $?"], **request}))
    space.apply(pod("dies", {"name": "c", "command": ["sh", "-c", f"exec {eat}"], **request}))
    conftest.until(lambda: {space.phase("goes-on"), space.phase("dies")} <= {"Succeeded", "Failed"})
    survivor, victim = space.get("pod", "goes-on")["status"], space.get("pod", "dies")["status"]
    assert survivor["phase"] == "Succeeded"
    assert "child 137\n" in space.kubectl("logs", "goes-on")
    assert (victim["phase"], ended({"status": victim})) == ("Failed", {"c": "OOMKilled"})
    states = cluster.shell("squeue --me --states=all --noheader --format='%i %T'").splitlines()
    assert {f"{space.job(name)} OUT_OF_MEMORY" for name in ("goes-on", "dies")} <= set(states)


def test_a_chatty_container_cannot_fill_the_home(space: conftest.Namespace) -> None:
    """Its log takes five files of 10 MiB; their lines are one log, newest last, and can be followed to the end."""
    line = "x" * 1000
    script = f"yes {line} | head -n 70000; echo last"
    space.apply(pod("chatty", {"name": "c", "command": ["sh", "-c", script]}))
    conftest.until(lambda: space.phase("chatty") == "Running" or space.phase("chatty") == "Succeeded")
    assert space.kubectl("logs", "-f", "--tail=5", "chatty", seconds=300).endswith("\nlast\n")
    conftest.until(lambda: space.phase("chatty") == "Succeeded")
    uid = space.get("pod", "chatty")["metadata"]["uid"]
    sizes = cluster.shell(f"stat -c %s .hpk/pods/{uid}/logs/c/*").split()
    assert len(sizes) == 5
    assert all(int(size) <= 10 << 20 for size in sizes)
    shown = space.kubectl("logs", "chatty", seconds=300)
    assert shown.endswith(f"{line}\nlast\n")
    assert 40_000_000 < len(shown) < 50 << 20
    assert space.kubectl("logs", "--tail=2", "chatty") == f"{line}\nlast\n"
    assert len(space.kubectl("logs", "--since=1h", "chatty", seconds=300)) == len(shown)
