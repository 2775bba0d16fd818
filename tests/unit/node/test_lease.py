"""The node's heartbeat."""

from __future__ import annotations

import asyncio
import re

import pytest

from hpk import errors
from hpk.node import lease
from tests.fakes import kube

PATH = f"{lease.LEASES}/hpk"


@pytest.fixture
async def server() -> kube.FakeKube:
    """An API server that has our node."""
    made = kube.FakeKube()
    made.put("/api/v1/nodes/hpk", {"metadata": {"name": "hpk", "uid": "node-uid"}})
    return made


async def test_creates_then_renews_with_one_request(server: kube.FakeKube) -> None:
    """The first renewal creates the lease, each later one is a single PUT."""
    times = iter([1_700_000_000.25, 1_700_000_010.5])
    controller = lease.LeaseController(server, "hpk", clock=lambda: next(times))
    await controller.renew()
    made = server.peek(PATH)
    assert made["spec"] == {
        "holderIdentity": "hpk",
        "leaseDurationSeconds": 40,
        "renewTime": "2023-11-14T22:13:20.250000Z",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    before = len(server.calls)
    await controller.renew()
    assert server.verbs()[before:] == ["replace"]
    assert server.peek(PATH)["spec"]["renewTime"] == "2023-11-14T22:13:30.500000Z"


async def test_takes_over_an_old_lease(server: kube.FakeKube) -> None:
    """A lease of an earlier kubelet, for a node that was recreated, is renewed and owned by the new node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": "hpk", "uid": "old"}
    server.put(PATH, {"metadata": {"name": "hpk", "ownerReferences": [owner]}, "spec": {"holderIdentity": "hpk"}})
    await lease.LeaseController(server, "hpk").renew()
    assert server.peek(PATH)["metadata"]["ownerReferences"][0]["uid"] == "node-uid"


async def test_without_a_node_the_owner_comes_later(server: kube.FakeKube) -> None:
    """The heartbeat does not wait for the registration; the reference is added once there is a node."""
    server.remove("/api/v1/nodes/hpk")
    controller = lease.LeaseController(server, "hpk")
    await controller.renew()
    assert "ownerReferences" not in server.peek(PATH)["metadata"]
    server.put("/api/v1/nodes/hpk", {"metadata": {"name": "hpk", "uid": "late"}})
    await controller.renew()
    assert server.peek(PATH)["metadata"]["ownerReferences"][0]["uid"] == "late"


@pytest.mark.parametrize("change", ["removed", "altered"])
async def test_a_lease_changed_by_others_is_read_anew(server: kube.FakeKube, change: str) -> None:
    """A conflict or a deletion is repaired within the same renewal."""
    controller = lease.LeaseController(server, "hpk")
    await controller.renew()
    if change == "removed":
        server.remove(PATH)
    else:
        server.put(PATH, {**server.peek(PATH), "spec": {"holderIdentity": "thief"}})
    await controller.renew()
    assert server.peek(PATH)["spec"]["holderIdentity"] == "hpk"


@pytest.mark.virtual_time
async def test_run_outlives_an_outage(server: kube.FakeKube) -> None:
    """An API server that is away does not end the heartbeat."""
    renewed = asyncio.Event()
    for error in (errors.ApiUnavailable("down"), errors.NotFound("namespace"), errors.Rejected("forbidden")):
        server.fail(error, path=PATH if not isinstance(error, errors.NotFound) else lease.LEASES)
    controller = lease.LeaseController(server, "hpk")
    original = server.replace

    async def replace(path: str, body: dict[str, object]) -> dict[str, object]:
        renewed.set()
        return await original(path, body)

    server.replace = replace  # type: ignore[method-assign] # told when the renewal comes
    task = asyncio.create_task(controller.run())
    await renewed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", server.peek(PATH)["spec"]["renewTime"])


async def test_a_clock_that_is_behind_does_not_move_the_lease_back(server: kube.FakeKube) -> None:
    """The node controller takes only a later time for a sign of life, and this host is two minutes behind the last."""
    server.put(PATH, {"metadata": {"name": "hpk"}, "spec": {"renewTime": "2023-11-14T22:15:20.250000Z"}})
    controller = lease.LeaseController(server, "hpk", clock=lambda: 1_700_000_000.0)
    times = []
    for _ in range(2):
        await controller.renew()
        times.append(server.peek(PATH)["spec"]["renewTime"])
    assert times == ["2023-11-14T22:15:20.250001Z", "2023-11-14T22:15:20.250002Z"]
