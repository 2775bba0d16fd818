"""An informer's copy follows the API server through changes, broken watches and expired versions."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.aio import backoff
from hpk.kube import informer
from tests import background
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.virtual_time

PATH = "/api/v1/namespaces/ns/configmaps"


class World:
    """An informer that runs over an API server in memory."""

    def __init__(self) -> None:
        self.api = kube.FakeKube()
        self.changed: list[str] = []
        self._wake = asyncio.Event()
        api: Any = self.api
        self.informer = informer.Informer(api, PATH, on_change=self._told)

    def _told(self, uid: str) -> None:
        self.changed.append(uid)
        self._wake.set()

    def put(self, name: str, **data: str) -> str:
        """Create or change one; its UID."""
        old: dict[str, Any] = {}
        if f"{PATH}/{name}" in self.api._objects:
            old = self.api.peek(f"{PATH}/{name}")["metadata"]
        made = self.api.put(f"{PATH}/{name}", {"metadata": {"name": name, "namespace": "ns", **old}, "data": data})
        return str(made["metadata"]["uid"])

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for changes until it holds."""
        async with asyncio.timeout(30):
            while not holds():
                self._wake.clear()
                await self._wake.wait()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """One with an object that was there before."""
    made = World()
    made.put("old")
    task = asyncio.create_task(made.informer.run())
    await asyncio.wait_for(made.informer.synced.wait(), 30)
    yield made
    await background.end(task)


async def test_what_was_there_before_and_what_comes_are_both_known(world: World) -> None:
    """By UID and by name, and each change is told."""
    uid = world.put("new", a="1")
    await world.until(lambda: uid in world.informer.objects)
    found = world.informer.named("ns", "new")
    assert found is not None
    assert found["data"] == {"a": "1"}
    assert world.informer.named("ns", "old") is not None
    assert world.changed[-1] == uid


async def test_what_is_deleted_is_forgotten_and_told(world: World) -> None:
    """Neither UID nor name finds it any more."""
    uid = world.informer.named("ns", "old")["metadata"]["uid"]  # type: ignore[index]
    world.api.remove(f"{PATH}/old")
    await world.until(lambda: uid not in world.informer.objects)
    assert world.informer.named("ns", "old") is None
    assert world.changed[-1] == uid


@pytest.mark.parametrize(
    ("error", "lists"),
    [(errors.ApiUnavailable("away"), 2), (errors.Conflict("410: too old"), 3), (errors.Rejected("403"), 3)],
)
async def test_a_list_and_a_watch_that_fail_are_tried_again(error: errors.HpkError, lists: int) -> None:
    """Later changes arrive, whatever the API server answered; it is listed anew unless it was merely away."""
    world = World()
    world.api.fail(errors.ApiUnavailable("away"), verb="get", path=PATH)
    world.api.fail(error, verb="watch", path=PATH)
    task = asyncio.create_task(world.informer.run())
    await world.informer.synced.wait()
    uid = world.put("late")
    await world.until(lambda: uid in world.informer.objects)
    assert world.api.verbs(PATH).count("get") == lists
    await background.end(task)


async def test_a_new_object_of_an_old_name_replaces_it(world: World) -> None:
    """The name leads to the new UID, even where the old one's deletion is heard later."""
    old = world.informer.named("ns", "old")["metadata"]["uid"]  # type: ignore[index]
    world.api.remove(f"{PATH}/old")
    new = world.put("old")
    await world.until(lambda: new in world.informer.objects and old not in world.informer.objects)
    assert new != old
    assert world.informer.named("ns", "old")["metadata"]["uid"] == new  # type: ignore[index]


async def test_watches_that_end_at_once_are_not_a_loop_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server, or a proxy, that hangs up each time is asked with growing pauses."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 5:
            raise asyncio.CancelledError

    world = World()

    async def nothing(*_: Any, **__: Any) -> AsyncIterator[dict[str, Any]]:
        no_events: list[dict[str, Any]] = []
        for event in no_events:
            yield event

    monkeypatch.setattr(world.api, "watch", nothing)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(informer, "PAUSES", backoff.BackoffPolicy(first_seconds=0.1, cap_seconds=1.0, jitter=0))
    with pytest.raises(asyncio.CancelledError):
        await world.informer.run()
    assert pauses == [0.2, 0.4, 0.8, 1.0, 1.0]
