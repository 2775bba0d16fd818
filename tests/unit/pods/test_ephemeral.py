"""What `kubectl debug` adds to a running pod reaches its agent once, or its status says why not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.kube import v1
from hpk.pods import admit, fields, prepare, watch
from tests.fakes import path
from tests.unit.pods import test_worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[path.World]:
    """A kubelet that soon tries again."""
    async with path.World(tmp_path) as made:
        yield made


def debug(world: path.World, name: str = "d", **changes: Any) -> None:
    """As `kubectl debug` does, for one container more."""
    pod = world.api.peek(f"{path.PODS}/p")
    pod["spec"].setdefault("ephemeralContainers", []).append({"name": name, "image": "i", **changes})
    world.api.put(f"{path.PODS}/p", pod)


def told(world: path.World) -> dict[str, Any]:
    """The status of the pod's only ephemeral container."""
    found: list[dict[str, Any]] = world.status().get("ephemeralContainerStatuses") or [{}]
    return found[0]


def waiting(world: path.World) -> tuple[str, str]:
    """Why it waits."""
    state = told(world).get("state", {}).get("waiting", {})
    return state.get("reason", ""), state.get("message", "")


async def takes(world: path.World, uid: str, sequence: int, **changes: Any) -> None:
    """The agent's report lists the container."""
    record = {**test_worker.report(uid, 1)["containers"]["c"], "image_id": "i@sha256:1", **changes}
    made = test_worker.report(uid, sequence)
    made["containers"]["d"] = record
    await world.agents.took_report(uid, made)


async def test_it_is_made_ready_and_told_once(world: path.World) -> None:
    """From the pod's specification to a running container in its status; the pod itself stays as it was."""
    uid = await test_worker.running(world)
    debug(world)
    await world.until(lambda: world.line.started == ["d"])
    await world.until(lambda: waiting(world) == ("ContainerCreating", ""))
    await takes(world, uid, 2)
    await world.until(lambda: "running" in told(world).get("state", {}))
    assert told(world)["imageID"] == "i@sha256:1"
    assert "started" not in told(world) or told(world)["started"] is None
    assert world.status()["phase"] == "Running"
    assert world.line.started == ["d"]


async def test_a_restarted_kubelet_starts_none_again(world: path.World) -> None:
    """The report lists it, so that it is neither made ready nor told of again; its image id is still there."""
    uid = await test_worker.running(world)
    world.allocator.found[uid] = "101"
    debug(world)
    await world.until(lambda: world.line.started == ["d"])
    await takes(world, uid, 2)
    await world.until(lambda: "running" in told(world).get("state", {}))
    await world.restart()
    await world.agents.connected(uid)
    await takes(
        world,
        uid,
        3,
        state="terminated",
        terminated=test_worker.report(uid, 1, state="terminated", code=5)["containers"]["c"]["terminated"],
    )
    await world.until(lambda: told(world)["state"].get("terminated", {}).get("exitCode") == 5)
    assert told(world)["imageID"] == "i@sha256:1"
    assert world.preparer.asked_for == ["d"]


async def test_what_it_lacks_is_in_its_status_and_tried_again(world: path.World) -> None:
    """A missing image, a missing Secret, a refusal, an API server that is away: each by its own name."""
    await test_worker.running(world)
    found: list[tuple[errors.HpkError, str, str]] = [
        (prepare.NotReady({"d": ("ErrImagePull", "none")}, seconds=0.01), "ErrImagePull", "none"),
        (errors.PodRefused("fieldRef 'x' is not supported"), "UnsupportedField", "fieldRef 'x' is not supported"),
        (errors.ApiUnavailable("it is away"), "CreateContainerError", "it is away"),
    ]
    world.preparer.errors = [found[0][0]] * 1000
    debug(world)
    for error, reason, message in found:
        world.preparer.errors = [error] * 1000
        await world.until(lambda wanted=(reason, message): waiting(world) == wanted)  # type: ignore[misc]
    world.preparer.errors = []
    await world.until(lambda: world.line.started == ["d"])


async def test_what_cannot_be_given_is_refused_although_the_webhook_was_away(world: path.World) -> None:
    """The same words, in the container's status; the pod runs on."""
    await test_worker.running(world)
    debug(world, securityContext={"privileged": True})
    await world.until(lambda: waiting(world)[0] == "UnsupportedField")
    assert "container d: securityContext.privileged is not supported (a pod has no privilege" in waiting(world)[1]
    assert world.preparer.asked_for == []
    assert world.status()["phase"] == "Running"


async def test_a_pod_of_an_older_agent_says_so(world: path.World) -> None:
    """It is not waited for in silence."""
    await test_worker.running(world)
    world.line.why_not = "the pod's agent is of version 0.1, from before ephemeral containers; recreate the pod"
    debug(world)
    await world.until(lambda: waiting(world)[0] == "CreateContainerError")
    assert waiting(world)[1] == f"Cannot start the container: {world.line.why_not}"


async def test_without_an_agent_it_waits_and_says_for_what(world: path.World) -> None:
    """When the agent is back it is told."""
    uid = await test_worker.running(world)
    await world.agents.disconnected(uid)
    debug(world)
    await world.until(lambda: waiting(world) == ("ContainerCreating", "the pod's agent is not connected now"))
    await world.agents.connected(uid)
    await world.until(lambda: world.line.started == ["d"])


async def test_what_the_link_lost_is_said_again(world: path.World) -> None:
    """Until the report lists it; the agent starts none twice."""
    uid = await test_worker.running(world)
    debug(world)
    await world.until(lambda: world.line.started == ["d"])
    await world.agents.disconnected(uid)
    await world.until(lambda: waiting(world)[1] == "the pod's agent is not connected now")
    await world.agents.connected(uid)
    await world.until(lambda: world.line.started == ["d", "d"])
    assert world.preparer.asked_for == ["d"]


async def test_one_added_before_the_pod_runs_is_started_when_it_does(world: path.World) -> None:
    """And keeps nobody from submitting it, whatever it asks for."""
    world.preparer.held["p"] = asyncio.Event()
    uid = world.create()
    debug(world, "bad", securityContext={"privileged": True}, volumeDevices=[{"name": "v", "devicePath": "/dev/x"}])
    debug(world)
    world.preparer.held["p"].set()
    await world.until(lambda: uid in world.allocator.submitted)
    await world.agents.connected(uid)
    await world.agents.took_report(uid, test_worker.report(uid, 1))
    await world.until(lambda: world.line.started == ["d"])


async def test_a_deleted_pod_waits_for_no_image(world: path.World) -> None:
    """What was being made ready is given up, and the pod is ended."""
    uid = await test_worker.running(world)
    world.preparer.held["d"] = asyncio.Event()
    debug(world)
    await world.until(lambda: world.preparer.asked_for == ["d"])
    await world.delete(grace=3)
    await world.until(lambda: world.line.asked == [(uid, 3.0)])
    ended = {"reason": "Deleted", "message": ""}
    last = test_worker.report(uid, 2, state="terminated", finished_at=2.0, ended=ended)
    await world.agents.took_report(uid, last)
    await world.until(lambda: not world.exists())
    assert world.line.started == []


def test_refusals_name_the_field() -> None:
    """Unknown fields, privilege, profiles and volumes; with one id another user."""
    spec: dict[str, Any] = {"containers": [{"name": "c", "image": "i", "securityContext": {"runAsUser": 7}}]}
    spec["ephemeralContainers"] = [
        {"name": "fine", "image": "i", "targetContainerName": "c", "securityContext": {"capabilities": {"add": ["X"]}}},
        {"name": "device", "image": "i", "volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]},
        {"name": "local", "image": "i", "securityContext": {"seccompProfile": {"type": "Localhost"}}},
        {"name": "volume", "image": "i", "volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        {"name": "user", "image": "i", "securityContext": {"runAsUser": 8}},
    ]
    raw = {"metadata": {"name": "p", "namespace": "ns"}, "spec": spec}
    found = admit.refused(raw, cluster=admit.Cluster(name="hpk"))
    assert found == {
        "device": "spec.ephemeralContainers[1].volumeDevices is not supported "
        f"({fields.REFUSED['EphemeralContainer.volumeDevices']})",
        "local": "spec.ephemeralContainers[2].securityContext.seccompProfile.type: Localhost is not supported "
        f"({fields.ONLY['SeccompProfile.type'][1]})",
        "volume": "container volume: volumeMount 'v' has no volume",
    }
    with_one = admit.refused(raw, cluster=admit.Cluster(name="hpk", has_subordinate_ids=False))
    assert with_one["user"].startswith("securityContext.runAsUser 7 and 8 in one pod")
    assert "fine" not in with_one
    assert (
        admit.admit(raw, cluster=admit.Cluster(name="hpk")).pod.spec.ephemeral_containers[0].target_container_name
        == "c"
    )


def test_a_finished_pod_s_copy_keeps_what_logs_need() -> None:
    """`kubectl logs -c` of an ephemeral container works when the pod is over."""
    container = {"name": "d", "image": "i", "env": [{"name": "SECRET", "value": "x"}]}
    raw = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c"}], "ephemeralContainers": [container]},
        "status": {},
    }
    slim = watch.trimmed(raw)
    assert slim["spec"]["ephemeralContainers"] == [{"name": "d", "image": "i"}]
    assert v1.pod(slim).spec.ephemeral_containers[0].name == "d"
