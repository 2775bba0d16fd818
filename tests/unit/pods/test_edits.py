"""A running pod's containers get new images, as its specification says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.pods import prepare
from tests.fakes import path
from tests.unit.pods.test_worker import report, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[path.World]:
    """A kubelet over an API server and a Slurm in memory."""
    async with path.World(tmp_path) as made:
        yield made


async def edit(world: path.World, image: str) -> None:
    """As kubectl set image."""
    change = {"metadata": {"generation": 2}, "spec": {"containers": [{"name": "c", "image": image}]}}
    await world.api.patch(f"{path.PODS}/p", change)


def changed(uid: str, image: str) -> Any:
    """The report of an agent that knows of the new image."""
    made = report(uid, 2)
    made["containers"]["c"] |= {"image": image, "image_id": "sha256:new", "restart_count": 1}
    return made


async def test_the_agent_is_told_of_a_new_image(world: path.World) -> None:
    """And the observed generation moves only when it knows."""
    uid = await running(world)
    await edit(world, "j")
    await world.until(lambda: world.line.started == ["c"])
    assert world.status()["observedGeneration"] < 2
    await world.agents.took_report(uid, changed(uid, "j"))
    await world.until(lambda: world.status()["containerStatuses"][0]["image"] == "j")
    assert world.status()["containerStatuses"][0]["imageID"] == "sha256:new"
    assert world.status()["observedGeneration"] == 2
    assert world.line.started == ["c"]


async def test_an_image_that_is_changed_again_at_once_is_the_last_one(world: path.World) -> None:
    """Before the agent's report names the first; and while the first is still being made ready."""
    uid = await running(world)
    await edit(world, "j")
    await world.until(lambda: "j" in world.line.images)
    await edit(world, "k")
    await world.agents.took_report(uid, changed(uid, "j"))
    await world.until(lambda: world.line.images[-1] == "k")
    world.preparer.held["c"] = asyncio.Event()
    await edit(world, "l")
    await world.until(lambda: len(world.preparer.asked_for) == 3)
    await edit(world, "m")
    world.preparer.held["c"].set()
    await world.until(lambda: world.line.images[-1] == "m")
    assert "l" not in world.line.images


async def test_a_new_image_that_cannot_be_had_leaves_the_container_as_it_is(world: path.World) -> None:
    """It runs on, an event says why, and nothing is told to the agent."""
    await running(world)
    world.preparer.errors = [prepare.NotReady({"c": ("ErrImagePull", "no such image")}, seconds=60)]
    await edit(world, "none")
    await world.until(lambda: world.preparer.asked_for == ["c"])
    assert world.line.started == []
    assert world.status()["phase"] == "Running"


async def test_an_agent_that_is_too_old_is_left_as_it_is(world: path.World) -> None:
    """The pod's events say what would help."""
    await running(world)
    world.line.why_not = (
        "the pod's agent is of version 0.1, from before changes of running pods' images; recreate the pod"
    )
    await edit(world, "j")
    told: list[str] = []

    def has_told() -> bool:
        told.extend(event.message for event in world.told())
        return any("recreate the pod" in message for message in told)

    await world.until(has_told)
    assert issubclass(errors.AgentUnavailable, errors.HpkError)


async def test_the_next_kubelet_knows_what_the_agent_was_told(world: path.World) -> None:
    """Its report says so: nothing is restarted again."""
    uid = await running(world)
    world.allocator.found[uid] = "101"
    await edit(world, "j")
    await world.until(lambda: world.line.started == ["c"])
    await world.restart()
    await world.agents.connected(uid)
    await world.agents.took_report(uid, changed(uid, "j"))
    await world.until(lambda: world.status()["observedGeneration"] == 2)
    assert world.line.started == ["c"]
