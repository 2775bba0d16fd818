"""Every pod that may go to the node is bound to it, once; what hinders the others is told on them."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from structlog import testing

from hpk import errors
from hpk.aio import backoff
from hpk.kube import v1
from hpk.pods import admit, bind, events, occupants, schedule
from hpk.slurm import model
from tests import background, waiting
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PODS = "/api/v1/namespaces/ns/pods"
CLUSTER = admit.Cluster(name="hpk", labels={"kubernetes.io/hostname": "hpk"}, allocatable={"pods": Decimal(2)})


class World:
    """A binder over an API server in memory."""

    def __init__(self) -> None:
        self.api = kube.FakeKube()
        client: Any = self.api
        self.told: list[str] = []
        recorder = events.EventRecorder(client, component=bind.SCHEDULER, host="hpk")
        recorder.tell = lambda _pod, _kind, reason, *_, **__: self.told.append(reason)  # type: ignore[method-assign]
        self.cluster: admit.Cluster | None = CLUSTER
        self.others = occupants.Occupants()
        around = schedule.Surroundings(others=self.others)
        self.binder = bind.Binder(client, node="hpk", recorder=recorder, cluster=lambda: self.cluster, around=around)

    def create(self, name: str, **spec: Any) -> None:
        """A pod that waits; its binding answers as the API server does."""
        template = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}], **spec}
        self.api.reactions[f"{PODS}/{name}/binding"] = lambda _body: self._bound(name)
        meta = {"name": name, "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"}
        self.api.put(f"{PODS}/{name}", {"metadata": meta, "spec": template})

    def _bound(self, name: str) -> dict[str, Any]:
        """The pod is on the node, and the kubelet's watch has seen it."""
        raw = self.api.peek(f"{PODS}/{name}")
        raw["spec"]["nodeName"] = "hpk"
        self.api.put(f"{PODS}/{name}", raw)
        self.others.update(raw["metadata"]["uid"], raw)
        return {}

    def change(self, **changes: Any) -> None:
        """Make the node, or what Slurm has, another."""
        self.cluster = dataclasses.replace(CLUSTER, **changes)
        self.binder.retry()

    def end(self, name: str) -> None:
        """The pod is over."""
        raw = self.api.peek(f"{PODS}/{name}")
        self.others.update(raw["metadata"]["uid"], {**raw, "status": {"phase": "Succeeded"}})

    def bound(self) -> list[str]:
        """The names of pods whose binding was asked for."""
        return [call.path.split("/")[-2] for call in self.bindings()]

    def conditions(self, name: str) -> list[dict[str, Any]]:
        """The pod's conditions."""
        found: list[dict[str, Any]] = self.api.peek(f"{PODS}/{name}").get("status", {}).get("conditions", [])
        return found

    def is_idle(self) -> bool:
        """Whether no round runs and none is wanted."""
        return not self.binder.queue._tasks and not self.binder.queue._dirty

    def bindings(self) -> list[kube.Call]:
        """The bindings that were asked for."""
        return [call for call in self.api.calls if call.path.endswith("/binding")]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A binder that works."""
    made = World()
    tasks = [asyncio.create_task(made.binder.informer.run()), asyncio.create_task(made.binder.queue.run())]
    yield made
    await background.end(*tasks)


async def test_a_waiting_pod_is_bound_to_the_node_by_its_uid(world: World) -> None:
    """The UID keeps a pod of the same name from being bound in its place."""
    world.create("p")
    await waiting.until(lambda: world.told == ["Scheduled"])
    (call,) = world.bindings()
    assert call.body["target"]["name"] == "hpk"
    assert call.body["metadata"]["uid"] == world.api.peek(f"{PODS}/p")["metadata"]["uid"]


async def test_a_gated_pod_and_another_schedulers_pod_wait(world: World) -> None:
    """Neither is this scheduler's to bind; the one behind them is bound all the same."""
    world.create("gated", schedulingGates=[{"name": "x"}])
    world.create("other", schedulerName="mine")
    world.create("p")
    await waiting.until(lambda: bool(world.bindings()) and world.is_idle())
    assert world.bound() == ["p"]
    assert sorted(world.told) == ["FailedScheduling", "Scheduled"]  # the former of the other scheduler's


@pytest.mark.parametrize("error", [errors.NotFound("gone"), errors.Conflict("bound already")])
async def test_a_pod_that_is_gone_or_bound_is_left_alone(world: World, error: errors.HpkError) -> None:
    """Nothing is told, and nothing tried again."""
    world.api.fail(error, path=f"{PODS}/p/binding")
    world.create("p")
    await waiting.until(lambda: bool(world.bindings()) and world.is_idle())
    assert (world.told, world.binder.queue._timers, len(world.others)) == ([], {}, 0)


async def test_a_refused_binding_is_told_and_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod says why it waits, and is bound when it may be."""
    monkeypatch.setattr(bind, "RETRIES", backoff.BackoffPolicy(first_seconds=0.01, cap_seconds=0.02))
    world.api.fail(errors.Rejected("forbidden"), path=f"{PODS}/p/binding")
    world.create("p")
    await waiting.until(lambda: world.told == ["FailedScheduling", "Scheduled"])


async def test_refused_bindings_are_tried_with_growing_pauses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An API server that refuses is not asked each second for ever; a success starts over."""
    pauses: list[float] = []
    monkeypatch.setattr(bind, "RETRIES", backoff.BackoffPolicy(first_seconds=0.01, cap_seconds=0.04, jitter=0))
    later = world.binder.queue._later

    def noted(uid: str, seconds: float | None) -> None:
        pauses.append(seconds or 0.0)
        later(uid, seconds)

    monkeypatch.setattr(world.binder.queue, "_later", noted)
    for _ in range(4):
        world.api.fail(errors.Rejected("forbidden"), path=f"{PODS}/p/binding")
    world.create("p")
    await waiting.until(lambda: "Scheduled" in world.told)
    assert [pause for pause in pauses if pause] == [0.01, 0.02, 0.04, 0.04]
    assert world.binder._refused == {}


async def test_a_pod_that_is_hindered_says_so_once_and_is_bound_when_that_has_changed(world: World) -> None:
    """Pending, PodScheduled False, Unschedulable, an event; nothing is written again while nothing is new."""
    world.change(is_unschedulable=True)
    world.create("p")
    await waiting.until(lambda: world.told == ["FailedScheduling"] and world.is_idle())
    (condition,) = world.conditions("p")
    assert (condition["type"], condition["status"], condition["reason"]) == ("PodScheduled", "False", "Unschedulable")
    assert condition["message"].startswith("0/1 nodes are available: 1 node(s) were unschedulable.")
    calls = len(world.api.calls)
    world.change(is_unschedulable=True, partition_names=frozenset({"new"}))
    await waiting.until(world.is_idle)
    assert (len(world.api.calls), world.bound()) == (calls, [])
    world.change()
    await waiting.until(lambda: world.told == ["FailedScheduling", "Scheduled"])


async def test_a_pod_waits_for_the_node_to_be_there(world: World) -> None:
    """In kube-scheduler's words."""
    world.cluster = None
    world.create("p")
    await waiting.until(lambda: bool(world.conditions("p")))
    assert world.conditions("p")[0]["message"] == "no nodes available to schedule pods"
    world.change()
    await waiting.until(lambda: world.bound() == ["p"])


async def test_a_full_node_takes_one_pod_for_each_that_ends_the_most_important_first(world: World) -> None:
    """A pod's end wakes one of those that wait for any, not all."""
    for number in range(2):
        world.create(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 2)
    for number in range(2, 5):
        world.create(f"p{number}", priority=number // 4)
    await waiting.until(lambda: world.told.count("FailedScheduling") == 3 and world.is_idle())
    assert world.conditions("p2")[0]["message"].startswith("0/1 nodes are available: 1 Too many pods.")
    world.end("p0")
    await waiting.until(lambda: len(world.bindings()) == 3 and world.is_idle())
    world.end("p1")
    await waiting.until(lambda: len(world.bindings()) == 4 and world.is_idle())
    assert world.bound()[2:] == ["p4", "p2"]


async def test_places_that_become_free_together_are_all_taken(world: World) -> None:
    """Whoever takes one calls the next, until one finds none."""
    world.change(allocatable={"pods": Decimal(4)})
    for number in range(4):
        world.create(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 4)
    for number in range(4, 10):
        world.create(f"p{number}")
    await waiting.until(lambda: world.told.count("FailedScheduling") == 6 and world.is_idle())
    for number in range(3):
        world.end(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 7 and world.is_idle())
    assert world.bound()[4:] == ["p4", "p5", "p6"]


async def test_a_pod_that_leaves_the_line_at_its_turn_leaves_the_place_to_the_next(world: World) -> None:
    """It is deleted, or its binding is refused; the refused one is not asked for again and again."""
    for number in range(2):
        world.create(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 2)
    for number in range(2, 5):
        world.create(f"p{number}")
    await waiting.until(lambda: world.told.count("FailedScheduling") == 3 and world.is_idle())
    for _ in range(9):
        world.api.fail(errors.Rejected("forbidden"), path=f"{PODS}/p2/binding")
    world.api.fail(errors.NotFound("deleted"), path=f"{PODS}/p3/binding")
    world.end("p0")
    await waiting.until(lambda: len(world.bindings()) == 5 and world.is_idle())
    assert world.bound()[2:] == ["p2", "p3", "p4"]


async def test_an_api_server_that_is_away_is_not_asked_for_all_that_wait(world: World) -> None:
    """The first keeps its turn, and the place, until it has an answer."""
    for number in range(2):
        world.create(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 2)
    for number in range(2, 5):
        world.create(f"p{number}")
    await waiting.until(lambda: world.told.count("FailedScheduling") == 3 and world.is_idle())
    for _ in range(2):
        world.api.fail(errors.ApiUnavailable("away"), path=f"{PODS}/p2/binding")
    with testing.capture_logs():
        world.end("p0")
        await waiting.until(lambda: len(world.bindings()) == 5 and world.is_idle())
    world.end("p1")
    await waiting.until(lambda: len(world.bindings()) == 6 and world.is_idle())
    assert world.bound()[2:] == ["p2", "p2", "p2", "p3"]


async def test_a_pod_that_was_bound_already_leaves_the_other_places_to_the_next(world: World) -> None:
    """The answer to its binding was lost, and the kubelet's watch has seen it before the second one."""
    for number in range(2):
        world.create(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 2)
    for number in range(2, 5):
        world.create(f"p{number}")
    await waiting.until(lambda: world.told.count("FailedScheduling") == 3 and world.is_idle())

    def bound_before(_body: Any) -> Any:
        world._bound("p2")
        raise errors.Conflict("bound already")

    world.api.reactions[f"{PODS}/p2/binding"] = bound_before
    for number in range(2):
        world.end(f"p{number}")
    await waiting.until(lambda: len(world.bindings()) == 4 and world.is_idle())
    assert world.bound()[2:] == ["p2", "p3"]


async def test_a_pods_end_writes_nothing_on_those_that_still_wait(world: World) -> None:
    """Hundreds may want what one pod has left; they are looked at, and told nothing new."""
    world.change(extended={"x/y": Decimal(2)}, allocatable={"pods": Decimal(9)})

    def wanting(count: int) -> dict[str, Any]:
        return {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"x/y": str(count)}}}]}

    for name in ("p0", "p1"):
        world.create(name, **wanting(1))
    await waiting.until(lambda: len(world.bindings()) == 2)
    for name in ("p2", "p3"):
        world.create(name, **wanting(2))
    await waiting.until(lambda: world.told.count("FailedScheduling") == 2 and world.is_idle())
    before = len(world.api.calls)
    world.end("p0")
    await waiting.until(world.is_idle)
    assert len(world.api.calls) == before
    world.end("p1")
    await waiting.until(lambda: len(world.bindings()) == 3)


async def test_another_schedulers_pod_is_told_whom_it_waits_for(world: World) -> None:
    """Once, and only when that scheduler has had time to bind it."""
    pod = v1.pod({"metadata": {"name": "p"}, "spec": {"containers": [], "schedulerName": "volcano"}})
    assert "scheduler 'volcano'" in bind.other_scheduler(pod)
    young = {"name": "p", "uid": "u", "creationTimestamp": datetime.now(UTC)}
    assert world.binder._leave(v1.pod({"metadata": young, "spec": {"containers": []}})) is not None
    assert world.told == []


async def test_a_pod_that_cannot_be_had_is_bound_all_the_same(world: World) -> None:
    """Its worker fails it by name: one that the webhook has missed must not stay Pending without a word."""
    world.change(capacity=model.ClusterCapacity(cpus=1, memory_bytes=1, gres={}, nodes={}, partitions={}))
    world.api.reactions[f"{PODS}/p/binding"] = lambda _body: {}
    meta = {"name": "p", "namespace": "ns", "annotations": {"slurm.hpk.io/flags": "--wrap=x"}}
    spec = {"schedulerName": "default-scheduler", "containers": [{"name": "c", "image": "i"}]}
    world.api.put(f"{PODS}/p", {"metadata": meta, "spec": spec})
    await waiting.until(lambda: world.bound() == ["p"])


async def test_a_round_that_raises_is_told_on_the_pod(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits, and says why; the others are bound."""

    def surprised(*_: Any) -> None:
        raise ValueError("a surprise")

    monkeypatch.setattr(schedule, "hindrance", surprised)
    with testing.capture_logs():
        world.create("p")
        await waiting.until(lambda: world.told == ["FailedScheduling"])
    assert world.bound() == []
