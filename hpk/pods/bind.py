"""The scheduler of one node: it binds each pod that fits, and reports on the others why they wait.

It has its own identity, because the node authorizer does not let a node bind pods.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.aio import backoff
from hpk.aio import clock as clocks
from hpk.kube import client, informer, v1
from hpk.pods import admit, events, queue, schedule, status

if TYPE_CHECKING:
    from collections.abc import Callable

LOG = structlog.get_logger(__name__)
SCHEDULER = "default-scheduler"
RETRIES = backoff.BackoffPolicy(first_seconds=1.0, cap_seconds=60.0)
LOOK_AGAIN_SECONDS = 60.0
"""How often a waiting pod is checked although nothing is known to have changed."""
OTHERS_SECONDS = 30.0
"""How long another scheduler may take before the pod gets an event that names it."""


class Binder:
    """A binder for pods of the default scheduler without scheduling gates, as soon as nothing hinders them.

    Attributes:
        informer: All pods that are not bound.
        queue: The pods to check.
    """

    def __init__(
        self,
        kube: client.Kube,
        *,
        node: str,
        recorder: events.EventRecorder,
        cluster: Callable[[], admit.Cluster | None],
        around: schedule.Surroundings,
        clock: clocks.Clock = clocks.SYSTEM,
    ) -> None:
        self._kube, self._node, self._recorder, self._clock = kube, node, recorder, clock
        self._cluster, self._around, self._others = cluster, around, around.others
        self._held: dict[str, tuple[schedule.Wants, int, int]] = {}
        self._line: list[tuple[int, int, str]] = []  # a heap of the pods that wait for room, and of some that left
        self._turns = itertools.count()
        self._refused: dict[str, backoff.Backoff] = {}
        self.queue = queue.Queue(self._look, on_failure=self._failed)
        query = {"fieldSelector": "spec.nodeName="}
        self.informer = informer.Informer(kube, "/api/v1/pods", query=query, on_change=self.queue.mark)
        self._others.on_freed = self._freed

    def retry(self) -> None:
        """Check all waiting pods again: the node, or Slurm's capacity, has changed."""
        for uid in list(self._held):
            self.queue.mark(uid)

    def _freed(self) -> None:
        """Check the pods that wait for certain others, and the first that waits for any room."""
        for uid, (wants, _, _) in self._held.items():
            if wants is schedule.Wants.PODS:
                self.queue.mark(uid)
        self._call_first()

    def _call_first(self) -> None:
        """Check the first pod that waits for room; each that leaves the line calls the next, until one finds none."""
        while self._line:
            priority, turn, uid = self._line[0]
            if self._held.get(uid) == (schedule.Wants.ROOM, -priority, turn):
                self.queue.mark(uid)
                return
            heapq.heappop(self._line)

    async def _look(self, uid: str) -> float | None:
        raw = self.informer.objects.get(uid)
        if raw is None or not _is_waiting(raw):
            self._forget(uid)
            return None
        pod = v1.pod(raw)
        if pod.spec.scheduler_name != SCHEDULER:
            return self._leave(pod)
        cluster = self._cluster()
        if cluster is None:
            return await self._hold(pod, schedule.Wants.NODE, schedule.NO_NODE)
        try:
            hindrance = schedule.hindrance(admit.derive(pod, cluster), cluster, self._around)
        except errors.PodRefused:
            hindrance = None  # its worker reports it; the webhook was unreachable
        if hindrance is not None:
            return await self._hold(pod, hindrance.wants, hindrance.message)
        return await self._bind(raw, pod)

    async def _bind(self, raw: dict[str, Any], pod: v1.Pod) -> float | None:
        meta, uid = pod.metadata, pod.metadata.uid
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta.name, "uid": uid}, "target": target}
        self._others.assume(raw)
        try:
            await self._kube.create(client.pod_path(meta.namespace, meta.name, "binding"), body)
        except (errors.NotFound, errors.Conflict):
            self._withdraw(uid)
            self._forget(uid)  # gone, or already bound
            return None
        except errors.Rejected as error:
            self._withdraw(uid)
            self._recorder.tell(pod, "Warning", "FailedScheduling", str(error))
            return self._refused.setdefault(uid, backoff.Backoff(RETRIES)).failed()
        except errors.HpkError:
            self._others.forget(uid, is_told=False)  # an unreachable API server binds no other pod either
            raise
        self._forget(uid)
        self._recorder.tell(pod, "Normal", "Scheduled", f"Successfully assigned {pod.where} to {self._node}")
        return None

    def _withdraw(self, uid: str) -> None:
        """Give the place of a pod that could not be bound to others; it is retried after its own pause."""
        self._release(uid)
        self._others.forget(uid)

    def _release(self, uid: str) -> None:
        """Release a held pod; the next in line may find room, even if this one is on the node after all."""
        held = self._held.pop(uid, None)
        if held and held[0] is schedule.Wants.ROOM:
            self._call_first()

    async def _hold(self, pod: v1.Pod, wants: schedule.Wants, message: str) -> float:
        """Let the pod wait, and report why in its PodScheduled condition and one event."""
        meta = pod.metadata
        self._note(pod, wants)
        before = next((one for one in pod.status.conditions if one.type == "PodScheduled"), None)
        if before and (before.status, before.reason, before.message) == ("False", "Unschedulable", message):
            return LOOK_AGAIN_SECONDS
        condition: dict[str, Any] = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        condition |= {"message": message, "observedGeneration": meta.generation}
        if before is None or before.status != "False":
            condition["lastTransitionTime"] = status.stamp(self._clock.time())
        body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
        try:
            await self._kube.patch(client.pod_path(meta.namespace, meta.name, "status"), body)
        except (errors.NotFound, errors.Conflict):
            return LOOK_AGAIN_SECONDS  # the pod is gone
        self._recorder.tell(pod, "Warning", "FailedScheduling", message)
        LOG.info("A pod waits to be bound", pod=pod.where, uid=meta.uid, why=message)
        return LOOK_AGAIN_SECONDS

    def _note(self, pod: v1.Pod, wants: schedule.Wants) -> None:
        """Remember what a pod waits for, and its place in line."""
        uid, before = pod.metadata.uid, self._held.get(pod.metadata.uid)
        turn = before[2] if before else next(self._turns)
        self._held[uid] = (wants, pod.spec.priority, turn)
        was_in_line = before is not None and before[0] is schedule.Wants.ROOM
        if wants is schedule.Wants.ROOM and not was_in_line:
            heapq.heappush(self._line, (-pod.spec.priority, turn, uid))
        elif was_in_line and wants is not schedule.Wants.ROOM:
            self._call_first()

    def _leave(self, pod: v1.Pod) -> float | None:
        """Leave the pod to another scheduler; after a while, report once which one it waits for."""
        created = pod.metadata.creation_timestamp
        age = (self._clock.now() - created).total_seconds() if created else OTHERS_SECONDS
        if age < OTHERS_SECONDS:
            return OTHERS_SECONDS - age
        self._recorder.tell(pod, "Warning", "FailedScheduling", other_scheduler(pod), key="scheduler")
        return None

    def _failed(self, uid: str, error: Exception) -> None:
        if (raw := self.informer.objects.get(uid)) is not None:
            events.tell_failure(self._recorder, raw, "FailedScheduling", error)

    def _forget(self, uid: str) -> None:
        self._release(uid)
        self._refused.pop(uid, None)
        self.queue.forget(uid)


def other_scheduler(pod: v1.Pod) -> str:
    """Return which scheduler a pod waits for, and what to do if there is none."""
    return (
        f"the pod waits to be bound by scheduler {pod.spec.scheduler_name!r}, as its schedulerName says; HPK binds "
        f"pods of {SCHEDULER!r}. If no such scheduler runs in this cluster, create the pod anew without schedulerName"
    )


def _is_waiting(raw: dict[str, Any]) -> bool:
    spec, meta = raw["spec"], raw["metadata"]
    return not spec.get("nodeName") and not spec.get("schedulingGates") and not meta.get("deletionTimestamp")
