"""Events on pods, written beside the path and never in its way.

Each is posted under a name made from the pod's UID and the event's key, so that a kubelet that restarts and
says it again writes no second one; a repetition raises the count of the first, as client-go's recorder does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import structlog

from hpk import errors
from hpk.kube import client

if TYPE_CHECKING:
    from hpk.kube import v1

LOG = structlog.get_logger(__name__)
QUEUE_LENGTH = 5000
REMEMBERED = 2000
WRITERS = 2
MESSAGE_LENGTH = 1024
"""The API server's own limit of an event's message."""

Kind = Literal["Normal", "Warning"]


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing to tell about a pod; ``container`` may be empty."""

    namespace: str
    name: str
    uid: str
    kind: Kind
    reason: str
    message: str
    container: str = ""
    at: float | None = None
    key: str = ""
    """What makes it one event and not a repetition; the reason and message if empty."""


class Recorder:
    """Posts events in the background; a queue that is full is said in the log, with the event."""

    def __init__(self, kube: client.Kube, *, component: str, host: str) -> None:
        self._kube, self._component, self._host = kube, component, host
        self._queue: asyncio.Queue[Event] = asyncio.Queue(QUEUE_LENGTH)
        self._counts: OrderedDict[str, int] = OrderedDict()

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
    ) -> None:
        """Queue an event on the pod; never waits, never raises."""
        meta = pod.metadata
        event = Event(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            kind=kind,
            reason=reason,
            message=message[:MESSAGE_LENGTH],
            container=container,
            at=at,
            key=key,
        )
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            LOG.warning("Cannot post an event, too many are waiting", pod=pod.where, reason=reason, message=message)

    async def run(self) -> None:
        """Post events until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    async def _write_all(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except Exception as error:  # noqa: BLE001 - no event is worth the kubelet's life
                LOG.warning("Cannot post an event", pod=f"{event.namespace}/{event.name}", error=repr(error))

    async def _write(self, event: Event) -> None:
        identity = hashlib.sha256(
            # What was not UTF-8 in a container's or Slurm's words comes as surrogates.
            "\0".join([event.uid, event.key or f"{event.reason}\0{event.message}", event.container]).encode(
                "utf-8", "surrogateescape"
            )
        ).hexdigest()[:16]
        count = self._counts.get(identity, 0) + 1
        self._remember(identity, count)
        path = client.core_path("events", event.namespace)
        # A pod's name may have 253 characters, and so may the event's.
        name = f"{event.name[:230]}.{identity}"
        if count == 1:
            try:
                await self._kube.create(path, self._body(event, name))
            except errors.Conflict:
                return  # an earlier kubelet told it
        else:
            change = {"count": count, "lastTimestamp": _time(event.at)}
            try:
                await self._kube.patch(f"{path}/{name}", change, kind="merge")
            except errors.NotFound:  # the API server keeps events for an hour
                await self._kube.create(path, self._body(event, name, count=count))

    def _remember(self, identity: str, count: int) -> None:
        self._counts[identity] = count
        self._counts.move_to_end(identity)
        while len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)

    def _body(self, event: Event, name: str, *, count: int = 1) -> dict[str, Any]:
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": event.namespace, "name": event.name, "uid": event.uid}
        if event.container:
            about["fieldPath"] = f"spec.containers{{{event.container}}}"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": event.namespace},
            "involvedObject": about,
            "reason": event.reason,
            "message": event.message,
            "type": event.kind,
            "count": count,
            "firstTimestamp": _time(event.at),
            "lastTimestamp": _time(event.at),
            "source": {"component": self._component, "host": self._host},
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }


def _time(seconds: float | None) -> str:
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
