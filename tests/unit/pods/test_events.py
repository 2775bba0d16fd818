"""Events are told once each, in the background, and never at the kubelet's cost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.kube import v1
from hpk.pods import events
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVENTS = "/api/v1/namespaces/ns/events"
POD = v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}})


def recorder(api: kube.FakeKube) -> events.Recorder:
    """A recorder of the kubelet's."""
    client: Any = api
    return events.Recorder(client, component="kubelet", host="hpk")


@pytest.fixture
async def api() -> kube.FakeKube:
    """An API server in memory."""
    return kube.FakeKube()


@pytest.fixture
async def told(api: kube.FakeKube) -> AsyncIterator[events.Recorder]:
    """A recorder that writes."""
    made = recorder(api)
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), "the recorder has ended"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def posted(api: kube.FakeKube, *, calls: int) -> list[dict[str, Any]]:
    """The events in the API server after this many requests."""
    async with asyncio.timeout(30):
        while len(api.calls) < calls:  # noqa: ASYNC110 - the fake has no event of its own
            await asyncio.sleep(0.002)
    return await api.list(EVENTS)


async def test_an_event_names_the_pod_and_the_container(api: kube.FakeKube, told: events.Recorder) -> None:
    """As kubectl describe looks for them."""
    told.tell(POD, "Warning", "Failed", "no such image", container="c", at=0.0)
    (event,) = await posted(api, calls=1)
    about = event["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == ("Pod", "ns", "p", "u")
    assert about["fieldPath"] == "spec.containers{c}"
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Failed", "no such image")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "1970-01-01T00:00:00Z"


async def test_a_repetition_raises_the_count(api: kube.FakeKube, told: events.Recorder) -> None:
    """One object, however often it is said."""
    for _ in range(3):
        told.tell(POD, "Normal", "BackOff", "pulling")
    (event,) = await posted(api, calls=3)
    assert event["count"] == 3


async def test_a_kubelet_that_restarts_tells_nothing_twice(api: kube.FakeKube, told: events.Recorder) -> None:
    """The name comes from what is told, not from chance."""
    told.tell(POD, "Normal", "Started", "Started container c", key="agent 4")
    await posted(api, calls=1)
    again = recorder(api)
    task = asyncio.create_task(again.run())
    again.tell(POD, "Normal", "Started", "Started container c", key="agent 4")
    (event,) = await posted(api, calls=2)
    assert event["count"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_event_that_has_expired_is_posted_anew(api: kube.FakeKube, told: events.Recorder) -> None:
    """The API server keeps events for an hour; what goes on longer is still seen, with its count."""
    told.tell(POD, "Normal", "BackOff", "pulling")
    (event,) = await posted(api, calls=1)
    api.remove(f"{EVENTS}/{event['metadata']['name']}")
    told.tell(POD, "Normal", "BackOff", "pulling")
    (event,) = await posted(api, calls=4)
    assert event["count"] == 2


@pytest.mark.parametrize("error", [errors.ApiUnavailable("away"), errors.Rejected("403"), ValueError("a surprise")])
async def test_no_failure_of_one_event_stops_the_others(api: kube.FakeKube, told: events.Recorder, error: Any) -> None:
    """An event that cannot be posted is lost, alone."""
    api.fail(error, verb="create", path=EVENTS)
    told.tell(POD, "Normal", "Lost", "x")
    told.tell(POD, "Normal", "Kept", "y")
    assert [event["reason"] for event in await posted(api, calls=2)] == ["Kept"]


async def test_words_that_are_not_utf8_are_told(api: kube.FakeKube, told: events.Recorder) -> None:
    """A container may say anything; its bytes come as surrogates."""
    told.tell(POD, "Warning", "Failed", "caf\udce9")
    (event,) = await posted(api, calls=1)
    assert event["reason"] == "Failed"


async def test_a_full_queue_never_raises(api: kube.FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tells must not care."""
    monkeypatch.setattr(events, "QUEUE_LENGTH", 1)
    silent = recorder(api)
    for _ in range(3):
        silent.tell(POD, "Normal", "X", "x")
    assert api.calls == []


async def test_what_is_remembered_of_events_is_bounded(
    api: kube.FakeKube, told: events.Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that lives for months does not grow with what it has told."""
    monkeypatch.setattr(events, "REMEMBERED", 2)
    for number in range(5):
        told.tell(POD, "Normal", "X", str(number))
    await posted(api, calls=5)
    assert len(told._counts) == 2
