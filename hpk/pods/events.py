"""Events on pods, written without delaying the path.

``hpk.pods.correlate`` decides what is written. An event's name derives from its content, so a restarted kubelet writes
no duplicate; it first reads the existing events, so that it sends no request twice either.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections import OrderedDict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.kube import client, v1
from hpk.pods import correlate, status

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = structlog.get_logger(__name__)
EVENTS = "/api/v1/events"
PAGE = 500
"""Events read at a time; an hour's may be a hundred thousand."""
MOST_WAITING = 5000
MOST_PODS = 20000
"""The number of pods whose newest event is remembered."""
WRITERS = 2
MESSAGE_LENGTH = 1024
"""The API server's limit of an event's message."""
KEPT_SECONDS = 3600.0
"""How long the API server keeps events; older ones are not written again."""
NUMBER = "hpk.io/agent-event"
"""The annotation with the number of the newest agent event that an event stands for."""

Kind = correlate.Kind


class EventRecorder:
    """A background writer of events; events that do not fit into the queue are logged."""

    def __init__(
        self,
        kube: client.Kube,
        *,
        component: str,
        host: str,
        history: client.Kube | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._component, self._host, self._history, self._clock = kube, component, host, history, clock
        self._correlator = correlate.Correlator(clock=clock)
        self._told: OrderedDict[str, int] = OrderedDict()
        self._waiting: dict[str, correlate.CorrelatedEvent] = {}
        self._queues: list[asyncio.Queue[str]] = [asyncio.Queue() for _ in range(WRITERS)]

    async def load(self) -> None:
        """Read the events of an earlier kubelet; if that fails, they are sent again and refused as existing."""
        if self._history is None:
            return
        query = {"fieldSelector": f"reportingComponent={self._component}", "limit": str(PAGE)}
        while True:
            try:
                found = await self._history.get(EVENTS, query=query)
            except errors.HpkError as error:
                LOG.warning("Cannot read the events of an earlier kubelet", component=self._component, error=str(error))
                return
            for raw in found["items"]:
                with contextlib.suppress(KeyError, TypeError, ValueError):  # not ours: anybody may write events
                    self._remember(raw)
            if not (token := found["metadata"].get("continue")):
                return
            query = {**query, "continue": token}

    def tell(
        self,
        pod: v1.Pod,
        kind: Kind,
        reason: str,
        message: str,
        *,
        container: str = "",
        at: float | None = None,
        key: str = "",
        number: int = 0,
        count: int = 1,
    ) -> None:
        """Queue an event on the pod; never wait, never raise.

        Only one event is ever written under a key. `number` is the agent's event number, and `count` how often the
        agent has seen it; an event already written, or older than the API server keeps events, is dropped.
        """
        if number and not self._is_news(pod.metadata.uid, number, at):
            return
        event = correlate.PodEvent(
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            uid=pod.metadata.uid,
            kind=kind,
            reason=reason,
            message=message[:MESSAGE_LENGTH],
            at=self._clock() if at is None else at,
            field_path=_field_path(pod, container),
            count=count,
            number=number,
            key=key,
        )
        told = self._correlator.correlate(event)
        if told is not None:
            self._enqueue(told)

    async def run(self) -> None:
        """Post events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for queue in self._queues:
                group.create_task(self._write_all(queue))

    def _is_news(self, uid: str, number: int, at: float | None) -> bool:
        if number <= self._told.get(uid, 0) or (at is not None and at < self._clock() - KEPT_SECONDS):
            return False
        self._note(uid, number)
        return True

    def _note(self, uid: str, number: int) -> None:
        self._told[uid] = max(number, self._told.get(uid, 0))
        self._told.move_to_end(uid)
        while len(self._told) > MOST_PODS:
            self._told.popitem(last=False)

    def _enqueue(self, told: correlate.CorrelatedEvent) -> None:
        """Queue the event; a newer version replaces one that still waits."""
        before = self._waiting.get(told.name)
        if before is None and len(self._waiting) >= MOST_WAITING:
            event = told.event
            where = f"{event.namespace}/{event.name}"
            LOG.warning("Cannot post an event, too many wait", pod=where, reason=event.reason, message=event.message)
            return
        self._waiting[told.name] = told if before is None else dataclasses.replace(told, is_new=before.is_new)
        if before is None:
            # All events of a pod go through one writer, in their order.
            self._queues[hash(told.event.uid) % WRITERS].put_nowait(told.name)

    async def _write_all(self, queue: asyncio.Queue[str]) -> None:
        while True:
            told = self._waiting.pop(await queue.get())
            try:
                await self._write(told)
            except Exception as error:  # noqa: BLE001 - a lost event must not end the kubelet
                event = told.event
                LOG.warning("Cannot post an event", pod=f"{event.namespace}/{event.name}", error=repr(error))

    async def _write(self, told: correlate.CorrelatedEvent) -> None:
        path = client.core_path("events", told.event.namespace)
        if told.is_new:
            try:
                await self._kube.create(path, self._body(told))
            except errors.Conflict:
                return  # an earlier kubelet wrote it
        else:
            change: dict[str, Any] = {"count": told.count, "lastTimestamp": status.stamp(told.event.at)}
            change |= {"message": told.event.message, "metadata": {"annotations": _annotations(told.event)}}
            try:
                await self._kube.patch(f"{path}/{told.name}", change, kind="merge")
            except errors.NotFound:  # it has expired
                await self._kube.create(path, self._body(told))

    def _remember(self, raw: dict[str, Any]) -> None:
        about = raw["involvedObject"]
        number = int((raw["metadata"].get("annotations") or {}).get(NUMBER, 0))
        event = correlate.PodEvent(
            namespace=about.get("namespace", ""),
            name=about.get("name", ""),
            uid=about.get("uid", ""),
            kind=raw.get("type", "Normal"),
            reason=raw.get("reason", ""),
            message=raw.get("message", ""),
            at=_seconds(raw.get("lastTimestamp")),
            field_path=about.get("fieldPath", ""),
            count=raw.get("count") or 1,
        )
        self._correlator.remember(event, first_at=_seconds(raw.get("firstTimestamp")))
        if number:
            self._note(event.uid, number)

    def _body(self, told: correlate.CorrelatedEvent) -> dict[str, Any]:
        event = told.event
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": event.namespace, "name": event.name, "uid": event.uid}
        if event.field_path:
            about["fieldPath"] = event.field_path
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": told.name, "namespace": event.namespace, "annotations": _annotations(event)},
            "involvedObject": about,
            "reason": event.reason,
            "message": event.message,
            "type": event.kind,
            "count": told.count,
            "firstTimestamp": status.stamp(told.first_at),
            "lastTimestamp": status.stamp(event.at),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }


def tell_failure(recorder: EventRecorder, raw: dict[str, Any], reason: str, error: Exception) -> None:
    """Report on a pod that it cannot proceed because of an error, even if the pod itself cannot be decoded.

    An unreachable API server is not the pod's fault, and could not receive the event.
    """
    if isinstance(error, errors.ApiUnavailable):
        return
    why = str(error) if isinstance(error, errors.HpkError) else f"{type(error).__name__}: {error}"
    meta = raw["metadata"]
    named = v1.Metadata(name=meta["name"], namespace=meta.get("namespace", ""), uid=meta["uid"])
    pod = v1.Pod(metadata=named, spec=v1.PodSpec(containers=[]))
    recorder.tell(pod, "Warning", reason, f"Cannot proceed with the pod, will try again: {why}")


def _field_path(pod: v1.Pod, container: str) -> str:
    """Return the container's path in the pod, as the kubelet's GenerateContainerRef names it."""
    if not container:
        return ""
    if any(one.name == container for one in pod.spec.init_containers):
        kind = "initContainers"
    else:
        is_ephemeral = any(one.name == container for one in pod.spec.ephemeral_containers)
        kind = "ephemeralContainers" if is_ephemeral else "containers"
    return f"spec.{kind}{{{container}}}"


def _annotations(event: correlate.PodEvent) -> dict[str, str]:
    return {NUMBER: str(event.number)} if event.number else {}


def _seconds(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
