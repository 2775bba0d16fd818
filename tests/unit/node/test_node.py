"""The Node object: created, kept true, foreign keys left alone, written only on change."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hpk import errors
from hpk.images import store
from hpk.node import node, nodestatus, systeminfo
from hpk.slurm import model
from tests.fakes import kube

PATH = "/api/v1/nodes/hpk"
STATUS = f"{PATH}/status"


def capacity(
    *, cpus: int = 1000, memory_bytes: int = 64 << 30, gres: dict[str, int] | None = None
) -> model.ClusterCapacity:
    """What hpk.slurm says the cluster has."""
    return model.ClusterCapacity(cpus=cpus, memory_bytes=memory_bytes, gres=gres or {}, nodes={}, partitions={})


class Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        """Tell the time."""
        return self.now


class World:
    """A controller, the API server it speaks to, and what it sees."""

    def __init__(self) -> None:
        self.kube = kube.FakeKube()
        self.clock = Clock()
        self.seen = nodestatus.NodeObservation(capacity=capacity())
        self.facts = nodestatus.NodeFacts(
            name="hpk",
            system=systeminfo.SystemInfo(
                machine_id="m",
                system_uuid="s",
                boot_id="b",
                kernel_version="6.1",
                os_image="Debian",
                architecture="amd64",
            ),
            address="10.77.0.11",
            hostname="c1",
            port=10250,
            apptainer_version="1.4.0",
            max_pods=1000,
        )
        self.controller = node.NodeController(self.kube, self.facts, lambda: self.seen, clock=self.clock)

    def writes(self) -> int:
        """Count the requests that change something."""
        return len([call for call in self.kube.calls if call.verb != "get"])


@pytest.fixture
async def world() -> World:
    """Nothing registered yet, Slurm well."""
    return World()


async def test_creates_the_node_with_all_a_kubelet_says(world: World) -> None:
    """A new node carries labels, capacity, conditions, addresses, versions and the kubelet's port."""
    world.seen = replace(world.seen, capacity=capacity(gres={"gpu": 4, "shard": 9}))
    await world.controller.sync()
    made = world.kube.peek(PATH)
    assert made["metadata"]["labels"]["kubernetes.io/hostname"] == "hpk"
    assert made["status"]["capacity"] == {"cpu": "1000", "memory": "67108864Ki", "pods": "1000", "nvidia.com/gpu": "4"}
    assert made["status"]["allocatable"] == made["status"]["capacity"]
    assert made["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}
    assert made["status"]["declaredFeatures"] == ["ExtendWebSocketsToKubelet"]
    assert [a["type"] for a in made["status"]["addresses"]] == ["InternalIP", "Hostname"]
    assert made["status"]["nodeInfo"]["containerRuntimeVersion"] == "apptainer://1.4.0"
    assert made["status"]["nodeInfo"]["kubeletVersion"] == "v1.37.2"
    ready = next(c for c in made["status"]["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    assert world.controller.registered.is_set()
    assert world.controller.uid == made["metadata"]["uid"]


async def test_writes_only_on_change(world: World) -> None:
    """A look that finds nothing new costs one GET and no write, until the report is due."""
    await world.controller.sync()
    for _ in range(29):
        world.clock.now += 10
        await world.controller.sync()
    assert world.writes() == 1
    world.clock.now += 10
    await world.controller.sync()
    assert world.kube.calls[-1].path == STATUS
    ready = next(c for c in world.kube.peek(PATH)["status"]["conditions"] if c["type"] == "Ready")
    assert ready["lastHeartbeatTime"] == "2023-11-14T22:18:20Z"
    assert ready["lastTransitionTime"] == "2023-11-14T22:13:20Z"


async def test_quantities_are_compared_by_value(world: World) -> None:
    """The API server may write 1000 as 1k: that is no change."""
    await world.controller.sync()
    stored = world.kube.peek(PATH)
    stored["status"]["capacity"] |= {"cpu": "1k", "memory": "64Gi", "pods": "1k"}
    world.kube.put(PATH, stored)
    await world.controller.sync()
    assert world.writes() == 1


async def test_foreign_keys_survive(world: World) -> None:
    """Capacities, labels, conditions and taints of others are still there after our writes."""
    await world.controller.sync()
    stored = world.kube.peek(PATH)
    stored["metadata"]["labels"]["team"] = "x"
    stored["status"]["capacity"]["example.com/foo"] = "5"
    stored["status"]["conditions"].append({"type": "Custom", "status": "True"})
    stored["spec"]["taints"] = [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    world.kube.put(PATH, stored)
    world.seen = replace(world.seen, capacity=capacity(cpus=7))
    await world.controller.sync()
    after = world.kube.peek(PATH)
    assert after["status"]["capacity"]["cpu"] == "7"
    assert after["status"]["capacity"]["example.com/foo"] == "5"
    assert after["metadata"]["labels"]["team"] == "x"
    assert "Custom" in {c["type"] for c in after["status"]["conditions"]}
    assert after["spec"]["taints"] == stored["spec"]["taints"]
    assert "spec" not in world.kube.calls[-1].body


async def test_taints_are_set_at_creation_only(world: World) -> None:
    """The node authorizer forbids us to change taints later, so they are in the POST and in no patch."""
    world.facts = replace(world.facts, taints=({"key": "slurm", "effect": "NoSchedule"},))
    world.controller = node.NodeController(world.kube, world.facts, lambda: world.seen, clock=world.clock)
    await world.controller.sync()
    assert world.kube.peek(PATH)["spec"]["taints"] == [{"key": "slurm", "effect": "NoSchedule"}]


async def test_altered_labels_are_set_right(world: World) -> None:
    """A label of ours that somebody changed comes back."""
    await world.controller.sync()
    stored = world.kube.peek(PATH)
    stored["metadata"]["labels"]["kubernetes.io/os"] = "plan9"
    world.kube.put(PATH, stored)
    await world.controller.sync()
    assert world.kube.peek(PATH)["metadata"]["labels"]["kubernetes.io/os"] == "linux"


async def test_an_address_that_changed_replaces_the_old_one(world: World) -> None:
    """The control plane moved to another host: the old addresses are gone."""
    await world.controller.sync()
    moved = node.NodeController(
        world.kube, replace(world.facts, address="10.77.0.12", hostname="c2"), lambda: world.seen, clock=world.clock
    )
    await moved.sync()
    assert world.kube.peek(PATH)["status"]["addresses"] == [
        {"type": "InternalIP", "address": "10.77.0.12"},
        {"type": "Hostname", "address": "c2"},
    ]


async def test_gpus_that_are_gone_become_zero(world: World) -> None:
    """A resource that we offered once is withdrawn; one that was never ours is not touched."""
    world.seen = replace(world.seen, capacity=capacity(gres={"gpu": 2}))
    await world.controller.sync()
    world.seen = replace(world.seen, capacity=capacity())
    await world.controller.sync()
    assert world.kube.peek(PATH)["status"]["capacity"]["nvidia.com/gpu"] == "0"
    await world.controller.sync()
    assert world.kube.verbs(STATUS) == ["patch"]


async def test_silence_of_slurm_keeps_the_published_capacity(world: World) -> None:
    """Without an answer of Slurm the node is not ready and its capacity stays."""
    await world.controller.sync()
    world.clock.now += 500
    bad = nodestatus.readiness(now=world.clock.now, started_at=0, answered_at=world.clock.now - 200, error="timed out")
    world.seen = nodestatus.NodeObservation(capacity=None, readiness=bad)
    await world.controller.sync()
    after = world.kube.peek(PATH)
    ready = next(c for c in after["status"]["conditions"] if c["type"] == "Ready")
    assert (ready["status"], ready["reason"]) == ("False", "SlurmUnavailable")
    assert ready["message"] == "slurmctld has not answered since 2023-11-14T22:18:20Z: timed out"
    assert ready["lastTransitionTime"] == "2023-11-14T22:21:40Z"
    assert after["status"]["capacity"]["cpu"] == "1000"


async def test_a_disk_without_room_is_a_condition(world: World) -> None:
    """The node controller makes a taint of it; the message says where, and the condition goes when there is room."""
    await world.controller.sync()
    for why, expected in (("less than 256 MiB are left in /h", "True"), ("", "False")):
        world.seen = nodestatus.NodeObservation(capacity=None, disk_pressure=why)
        await world.controller.sync()
        said = {one["type"]: one for one in world.kube.peek(PATH)["status"]["conditions"]}["DiskPressure"]
        assert said["status"] == expected
        assert said["message"].endswith(why)


def test_readiness_has_patience() -> None:
    """A short silence is no reason; having never heard of Slurm is."""
    assert nodestatus.readiness(now=100, started_at=0, answered_at=10, error="timed out").is_ready
    assert not nodestatus.readiness(now=131, started_at=0, answered_at=10, error="timed out").is_ready
    assert nodestatus.readiness(now=999, started_at=0, answered_at=10).is_ready  # nobody asked since
    assert not nodestatus.readiness(now=1, started_at=0, answered_at=None).is_ready


async def test_a_deleted_node_is_registered_again(world: World) -> None:
    """A kubectl delete node brings a new node within one period."""
    await world.controller.sync()
    first = world.controller.uid
    world.kube.remove(PATH)
    await world.controller.sync()
    assert world.controller.uid not in ("", first)


async def test_a_node_that_exists_is_reconciled(world: World) -> None:
    """A restarted kubelet takes its node over, whatever it says."""
    world.kube.put(PATH, {"metadata": {"name": "hpk"}, "spec": {"unschedulable": True}})
    await world.controller.sync()
    after = world.kube.peek(PATH)
    assert after["spec"] == {"unschedulable": True}
    assert after["status"]["capacity"]["cpu"] == "1000"


async def test_a_node_recreated_under_our_hands_is_a_failure_to_retry(world: World) -> None:
    """Between GET and PATCH the node may go; the next look repairs."""
    await world.controller.sync()
    world.seen = replace(world.seen, capacity=capacity(cpus=1))
    world.kube.fail(errors.NotFound("gone"), verb="patch")
    with pytest.raises(errors.ApiUnavailable):
        await world.controller.sync()
    await world.controller.sync()
    assert world.kube.peek(PATH)["status"]["capacity"]["cpu"] == "1"


@pytest.mark.virtual_time
async def test_run_outlives_outages(world: World) -> None:
    """run() retries what fails, and brings changes out."""
    world.kube.fail(errors.ApiUnavailable("down"))
    world.kube.fail(errors.Rejected("forbidden: RBAC is not ready"))
    task = asyncio.create_task(world.controller.run())
    await world.controller.registered.wait()
    world.seen = replace(world.seen, capacity=capacity(cpus=3))
    patched = asyncio.Event()
    original = world.kube.patch

    async def patch(path: str, body: object, *, kind: str = "strategic") -> dict[str, object]:
        patched.set()
        return await original(path, body, kind=kind)

    world.kube.patch = patch  # type: ignore[method-assign] # told when the write comes
    await patched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.kube.peek(PATH)["status"]["capacity"]["cpu"] == "3"


async def test_images_are_the_fifty_largest(world: World) -> None:
    """More would bloat the object that every watcher of nodes receives."""
    images = tuple(store.CachedImage(names=tuple(f"r/{n}:{t}" for t in range(9)), size_bytes=n) for n in range(60))
    world.seen = replace(world.seen, images=images)
    await world.controller.sync()
    published = world.kube.peek(PATH)["status"]["images"]
    assert [image["sizeBytes"] for image in published] == list(range(59, 9, -1))
    assert {len(image["names"]) for image in published} == {5}


def test_host_ids_follow_the_cluster_not_the_machine() -> None:
    """The same control plane on another host is the same node."""
    one, two = systeminfo.read(identity="ca"), systeminfo.read(identity="ca")
    assert one == two
    assert one.machine_id != systeminfo.read(identity="other").machine_id
    assert one.architecture in ("amd64", "arm64") or one.architecture
