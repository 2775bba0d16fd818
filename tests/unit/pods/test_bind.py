"""Every pod that waits for the default scheduler is bound to the one node, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.aio import backoff
from hpk.pods import bind, events
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PODS = "/api/v1/namespaces/ns/pods"


class World:
    """A binder over an API server in memory."""

    def __init__(self) -> None:
        self.api = kube.FakeKube()
        client: Any = self.api
        self.told: list[str] = []
        recorder = events.Recorder(client, component=bind.SCHEDULER, host="hpk")
        recorder.tell = lambda _pod, _kind, reason, *_, **__: self.told.append(reason)  # type: ignore[method-assign]
        self.binder = bind.Binder(client, node="hpk", recorder=recorder)

    def create(self, name: str, **spec: Any) -> None:
        """A pod that waits; its binding answers as the API server does."""
        waiting = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}], **spec}
        self.api.reactions[f"{PODS}/{name}/binding"] = lambda _body: {}
        self.api.put(f"{PODS}/{name}", {"metadata": {"name": name, "namespace": "ns"}, "spec": waiting})

    def bindings(self) -> list[kube.Call]:
        """The bindings that were asked for."""
        return [call for call in self.api.calls if call.path.endswith("/binding")]

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - the fake has no event of its own
                await asyncio.sleep(0.002)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A binder that works."""
    made = World()
    tasks = [asyncio.create_task(made.binder.informer.run()), asyncio.create_task(made.binder.queue.run())]
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_waiting_pod_is_bound_to_the_node_by_its_uid(world: World) -> None:
    """The UID keeps a pod of the same name from being bound in its place."""
    world.create("p")
    await world.until(lambda: world.told == ["Scheduled"])
    (call,) = world.bindings()
    assert call.body["target"]["name"] == "hpk"
    assert call.body["metadata"]["uid"] == world.api.peek(f"{PODS}/p")["metadata"]["uid"]


async def test_a_gated_pod_and_another_schedulers_pod_wait(world: World) -> None:
    """Neither is this scheduler's to bind; the one behind them is bound all the same."""
    world.create("gated", schedulingGates=[{"name": "x"}])
    world.create("other", schedulerName="mine")
    world.create("p")
    await world.until(lambda: bool(world.bindings()) and not world.binder.queue._tasks)
    assert [call.path for call in world.bindings()] == [f"{PODS}/p/binding"]


@pytest.mark.parametrize("error", [errors.NotFound("gone"), errors.Conflict("bound already")])
async def test_a_pod_that_is_gone_or_bound_is_left_alone(world: World, error: errors.HpkError) -> None:
    """Nothing is told, and nothing tried again."""
    world.api.fail(error, path=f"{PODS}/p/binding")
    world.create("p")
    await world.until(lambda: bool(world.bindings()) and not world.binder.queue._tasks)
    assert (world.told, world.binder.queue._timers) == ([], {})


async def test_a_refused_binding_is_told_and_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod says why it waits, and is bound when it may be."""
    monkeypatch.setattr(bind, "RETRIES", backoff.Policy(first_seconds=0.01, cap_seconds=0.02))
    world.api.fail(errors.Rejected("forbidden"), path=f"{PODS}/p/binding")
    world.create("p")
    await world.until(lambda: world.told == ["FailedScheduling", "Scheduled"])


async def test_refused_bindings_are_tried_with_growing_pauses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that refuses is not asked each second for ever; a success starts over."""
    pauses: list[float] = []
    monkeypatch.setattr(bind, "RETRIES", backoff.Policy(first_seconds=0.01, cap_seconds=0.04, jitter=0))
    later = world.binder.queue._later

    def noted(uid: str, seconds: float | None) -> None:
        pauses.append(seconds or 0.0)
        later(uid, seconds)

    monkeypatch.setattr(world.binder.queue, "_later", noted)
    for _ in range(4):
        world.api.fail(errors.Rejected("forbidden"), path=f"{PODS}/p/binding")
    world.create("p")
    await world.until(lambda: "Scheduled" in world.told)
    assert [pause for pause in pauses if pause] == [0.01, 0.02, 0.04, 0.04]
    assert world.binder._refused == {}
