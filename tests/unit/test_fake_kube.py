"""The API server in memory behaves as the real one does, where HPK relies on it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hpk import errors
from tests.fakes import kube

PODS = "/api/v1/namespaces/a/pods"
POD = f"{PODS}/p"


@pytest.fixture
async def server() -> kube.FakeKube:
    """A server with one pod."""
    made = kube.FakeKube()
    made.put(POD, {"metadata": {"name": "p"}, "spec": {"nodeName": "hpk"}, "status": {"phase": "Pending"}})
    return made


async def test_missing_and_existing(server: kube.FakeKube) -> None:
    """404 for what is not there, 409 for what is."""
    for call in (server.get(f"{PODS}/q"), server.patch(f"{PODS}/q", {}), server.delete(f"{PODS}/q")):
        with pytest.raises(errors.NotFound):
            await call
    with pytest.raises(errors.Conflict):
        await server.create(PODS, {"metadata": {"name": "p"}})
    assert (await server.get(PODS))["items"] == [await server.get(POD)]
    assert len(await server.list("/api/v1/pods", query={"fieldSelector": "spec.nodeName=hpk"})) == 1
    assert await server.list("/api/v1/pods", query={"fieldSelector": "spec.nodeName="}) == []


async def test_versions_and_uids_guard_writes(server: kube.FakeKube) -> None:
    """A write that carries an old version or another uid conflicts; one that changes nothing keeps the version."""
    old = await server.get(POD)
    new = await server.patch(f"{POD}/status", {"status": {"phase": "Running"}})
    assert new["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
    assert await server.patch(f"{POD}/status", {"status": {"phase": "Running"}}) == new
    with pytest.raises(errors.Conflict):
        await server.replace(POD, old)
    with pytest.raises(errors.Conflict):
        await server.patch(POD, {"metadata": {"uid": "another"}})
    with pytest.raises(errors.Conflict):
        await server.delete(POD, body={"preconditions": {"uid": "another"}})


async def test_status_and_spec_are_apart(server: kube.FakeKube) -> None:
    """A patch of the status cannot change the spec, nor the other way round."""
    await server.patch(f"{POD}/status", {"spec": {"nodeName": "x"}, "status": {"phase": "Running"}})
    await server.patch(POD, {"spec": {"hostname": "h"}, "status": {"phase": "Failed"}})
    pod = server.peek(POD)
    assert pod["spec"] == {"nodeName": "hpk", "hostname": "h"}
    assert pod["status"] == {"phase": "Running"}


@pytest.mark.parametrize(
    ("old", "patch", "expected"),
    [
        ({"a": 1, "b": 2}, {"b": None, "c": 3}, {"a": 1, "c": 3}),
        (
            {"conditions": [{"type": "A", "x": 1}, {"type": "B"}]},
            {"conditions": [{"type": "A", "y": 2}, {"type": "C"}]},
            {"conditions": [{"type": "A", "x": 1, "y": 2}, {"type": "B"}, {"type": "C"}]},
        ),
        (
            {"conditions": [{"type": "A"}, {"type": "B"}]},
            {"conditions": [{"type": "A", "$patch": "delete"}]},
            {"conditions": [{"type": "B"}]},
        ),
        (
            {"addresses": [{"type": "A"}]},
            {"addresses": [{"type": "B"}, {"$patch": "replace"}]},
            {"addresses": [{"type": "B"}]},
        ),
        ({"images": [1, 2]}, {"images": [3]}, {"images": [3]}),
    ],
)
def test_strategic_merge(old: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any]) -> None:
    """Lists with a merge key merge by it, all others are replaced, null deletes."""
    assert kube.merged(old, patch, is_strategic=True) == expected


async def test_deletion_with_grace_and_finalizers(server: kube.FakeKube) -> None:
    """A pod is marked first, and gone when deleted with no grace, or when its last finalizer goes."""
    await server.delete(POD)
    assert server.peek(POD)["metadata"]["deletionGracePeriodSeconds"] == 30
    await server.delete(POD, body={"gracePeriodSeconds": 0})
    with pytest.raises(KeyError):
        server.peek(POD)
    server.put(POD, {"metadata": {"name": "p", "finalizers": ["f"]}})
    await server.delete(POD, body={"gracePeriodSeconds": 0})
    await server.patch(POD, {"metadata": {"finalizers": []}}, kind="merge")
    with pytest.raises(KeyError):
        server.peek(POD)


async def test_watch_tells_what_happened_since(server: kube.FakeKube) -> None:
    """Changes before the watch are replayed from the version asked for, later ones come as they happen."""
    version = (await server.get(PODS))["metadata"]["resourceVersion"]
    await server.patch(f"{POD}/status", {"status": {"phase": "Running"}})
    events = server.watch(PODS, query={}, resource_version=version)
    assert (await anext(events))["type"] == "MODIFIED"
    later = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    server.remove(POD)
    assert (await later)["type"] == "DELETED"
    await events.aclose()


async def test_failures_and_reactions(server: kube.FakeKube) -> None:
    """The next call that matches fails, once; a reaction answers instead of storing."""
    server.fail(errors.ApiUnavailable("down"), verb="get", path=POD)
    await server.get(PODS)
    with pytest.raises(errors.ApiUnavailable):
        await server.get(POD)
    await server.get(POD)
    server.reactions["/reviews"] = lambda body: {"echo": body}
    assert await server.create("/reviews", {"x": 1}) == {"echo": {"x": 1}}
    assert server.verbs("/reviews") == ["create"]
