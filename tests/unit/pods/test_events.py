"""Events are told in the background, as few objects, none twice, and never at the kubelet's cost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from hpk import errors
from hpk.kube import v1
from hpk.pods import events
from tests import background, waiting
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVENTS = "/api/v1/namespaces/ns/events"
SPEC = {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}], "ephemeralContainers": [{"name": "e"}]}
POD = v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": SPEC})


def recorder(api: kube.FakeKube) -> events.EventRecorder:
    """A recorder of the kubelet's."""
    client: Any = api
    return events.EventRecorder(client, component="kubelet", host="hpk", history=client)


@pytest.fixture
async def api() -> kube.FakeKube:
    """An API server in memory."""
    return kube.FakeKube()


@pytest.fixture
async def told(api: kube.FakeKube) -> AsyncIterator[events.EventRecorder]:
    """A recorder that writes."""
    made = recorder(api)
    task = asyncio.create_task(made.run())
    yield made
    assert not task.done(), "the recorder has ended"
    await background.end(task)


async def posted(api: kube.FakeKube, *, calls: int) -> list[dict[str, Any]]:
    """The events in the API server after this many requests."""
    await waiting.until(lambda: len(api.calls) >= calls)
    return await api.list(EVENTS)


async def test_an_event_names_the_pod_and_the_container(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """As kubectl describe looks for them."""
    told.tell(POD, "Warning", "Failed", "no such image", container="c", at=0.0)
    (event,) = await posted(api, calls=1)
    about = event["involvedObject"]
    assert (about["kind"], about["namespace"], about["name"], about["uid"]) == ("Pod", "ns", "p", "u")
    assert about["fieldPath"] == "spec.containers{c}"
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "Failed", "no such image")
    assert event["firstTimestamp"] == event["lastTimestamp"] == "1970-01-01T00:00:00Z"


@pytest.mark.parametrize(("name", "path"), [("c", "containers"), ("i", "initContainers"), ("e", "ephemeralContainers")])
async def test_an_event_names_the_kind_of_container(
    api: kube.FakeKube, told: events.EventRecorder, name: str, path: str
) -> None:
    """As the kubelet's own do."""
    told.tell(POD, "Normal", "Started", "Container started", container=name)
    (event,) = await posted(api, calls=1)
    assert event["involvedObject"]["fieldPath"] == f"spec.{path}{{{name}}}"


async def test_a_repetition_raises_the_count(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """One object, however often it is said; what waits to be written is written once."""
    told.tell(POD, "Normal", "BackOff", "pulling", at=10.0)
    await posted(api, calls=1)
    for at in (20.0, 30.0):
        told.tell(POD, "Normal", "BackOff", "pulling", at=at)
    (event,) = await posted(api, calls=3)
    assert (event["count"], event["firstTimestamp"][-4:], event["lastTimestamp"][-4:]) == (3, ":10Z", ":30Z")
    assert [call.verb for call in api.calls] == ["create", "get", "patch", "get"]


async def test_what_the_agent_counted_is_the_count(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """It tells only now and then how often a probe has failed."""
    now = time.time()
    told.tell(POD, "Warning", "Unhealthy", "Readiness probe failed", number=1, at=now)
    told.tell(POD, "Warning", "Unhealthy", "Readiness probe failed", number=2, count=40, at=now)
    told.tell(POD, "Warning", "Unhealthy", "Readiness probe failed", number=2, count=40, at=now)
    (event,) = await posted(api, calls=1)
    assert event["count"] == 40


async def restarted(api: kube.FakeKube) -> tuple[events.EventRecorder, asyncio.Task[None]]:
    """The recorder of the next kubelet."""
    made = recorder(api)
    await made.load()
    return made, asyncio.create_task(made.run())


async def test_a_kubelet_that_restarts_tells_nothing_twice(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """It asks once what was told, and then for nothing: not of one of thousands of the agents' events."""
    now = time.time()
    told.tell(POD, "Normal", "Started", "Container started", number=4, at=now)
    told.tell(POD, "Normal", "BackOff", "pulling", at=now)
    await posted(api, calls=2)
    api.calls.clear()
    again, task = await restarted(api)
    for number in range(1, 5):
        again.tell(POD, "Normal", "Started", "Container started", number=number, at=now)
    again.tell(POD, "Normal", "Started", "Container started", number=5, at=now - 4000)  # kept no longer
    again.tell(POD, "Normal", "BackOff", "pulling", at=now)
    await posted(api, calls=2)
    assert [call.verb for call in api.calls] == ["get", "patch", "get"]
    assert [event["count"] for event in await api.list(EVENTS) if event["reason"] == "BackOff"] == [2]
    await background.end(task)


async def test_what_is_told_once_ever_is_told_once_ever(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """By a key, whatever its text says the next time, and whichever kubelet says it."""
    told.tell(POD, "Warning", "Evicted", "Slurm job 7 was cancelled", key="end")
    told.tell(POD, "Warning", "Evicted", "Slurm job 7 was cancelled, said again", key="end")
    await posted(api, calls=1)
    again, task = await restarted(api)
    again.tell(POD, "Warning", "Evicted", "Slurm job 7 was cancelled", key="end")
    (event,) = await posted(api, calls=3)
    assert event["count"] == 1
    await background.end(task)


async def test_a_kubelet_that_cannot_learn_what_was_told_starts_all_the_same(
    api: kube.FakeKube, told: events.EventRecorder
) -> None:
    """Its events are refused as known, then."""
    told.tell(POD, "Normal", "Started", "Container started")
    await posted(api, calls=1)
    api.fail(errors.ApiUnavailable("away"), verb="get")
    again, task = await restarted(api)
    again.tell(POD, "Normal", "Started", "Container started")
    (event,) = await posted(api, calls=4)
    assert event["count"] == 1
    await background.end(task)


async def test_what_was_told_is_read_in_pages(
    api: kube.FakeKube, told: events.EventRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour of many short pods leaves a hundred thousand events: they are never in memory together."""
    monkeypatch.setattr(events, "PAGE", 2)
    for number in range(5):
        told.tell(POD, "Normal", f"Started{number}", "Container started", number=number + 1)
    await posted(api, calls=5)
    before = len(api.verbs(events.EVENTS))
    again, task = await restarted(api)
    assert len(api.verbs(events.EVENTS)) == before + 3
    again.tell(POD, "Normal", "Started4", "Container started", number=5)
    assert not again._waiting
    await background.end(task)


async def test_an_event_that_has_expired_is_posted_anew(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """The API server keeps events for an hour; what goes on longer is still seen, with its count."""
    told.tell(POD, "Normal", "BackOff", "pulling")
    (event,) = await posted(api, calls=1)
    api.remove(f"{EVENTS}/{event['metadata']['name']}")
    told.tell(POD, "Normal", "BackOff", "pulling")
    (event,) = await posted(api, calls=4)
    assert event["count"] == 2


@pytest.mark.parametrize("error", [errors.ApiUnavailable("away"), errors.Rejected("403"), ValueError("a surprise")])
async def test_no_failure_of_one_event_stops_the_others(
    api: kube.FakeKube, told: events.EventRecorder, error: Any
) -> None:
    """An event that cannot be posted is lost, alone."""
    api.fail(error, verb="create", path=EVENTS)
    told.tell(POD, "Normal", "Lost", "x")
    told.tell(POD, "Normal", "Kept", "y")
    assert [event["reason"] for event in await posted(api, calls=2)] == ["Kept"]


@pytest.mark.parametrize("odd", [0xDCE9, 0xD800])
async def test_words_that_are_not_utf8_are_told(api: kube.FakeKube, told: events.EventRecorder, odd: int) -> None:
    """A container may say anything, and its bytes come as surrogates; a registry may send surrogates of its own."""
    told.tell(POD, "Warning", "Failed", f"caf{chr(odd)}")
    (event,) = await posted(api, calls=1)
    assert event["reason"] == "Failed"


async def test_a_full_queue_never_raises(api: kube.FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tells must not care."""
    monkeypatch.setattr(events, "MOST_WAITING", 1)
    silent = recorder(api)
    for number in range(3):
        silent.tell(POD, "Normal", "X", str(number))
    assert api.calls == []
    assert len(silent._waiting) == 1


async def test_what_is_remembered_of_pods_is_bounded(api: kube.FakeKube, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that lives for months does not grow with what it has told."""
    monkeypatch.setattr(events, "MOST_PODS", 2)
    made = recorder(api)
    for number in range(5):
        pod = msgspec.structs.replace(POD, metadata=msgspec.structs.replace(POD.metadata, uid=str(number)))
        made.tell(pod, "Normal", "X", "x", number=1)
    assert list(made._told) == ["3", "4"]


async def test_events_that_others_have_written_do_no_harm(api: kube.FakeKube, told: events.EventRecorder) -> None:
    """Anybody may write one in the kubelet's name, with what he likes in it."""
    about = {"uid": "u", "name": "p", "namespace": "ns"}
    shapes: list[dict[str, Any]] = [
        {"metadata": {"annotations": {events.NUMBER: "many"}}, "involvedObject": about},
        {"metadata": {}, "involvedObject": about, "firstTimestamp": "noon"},
        {"metadata": {}},
    ]
    for number, shape in enumerate(shapes):
        api.put(f"{EVENTS}/{number}", {**shape, "reportingComponent": "kubelet"})
    await told.load()
    told.tell(POD, "Normal", "Started", "Container started", number=1)
    assert [event["count"] for event in await posted(api, calls=2) if event.get("reason")] == [1]
