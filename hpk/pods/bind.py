"""The pass-through scheduler: every pod goes to the one node, for Slurm is the scheduler.

It has an identity of its own: the node authorizer does not let a node bind pods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.aio import backoff
from hpk.kube import client, informer, v1
from hpk.pods import queue

if TYPE_CHECKING:
    from hpk.pods import events

LOG = structlog.get_logger(__name__)
SCHEDULER = "default-scheduler"
RETRIES = backoff.Policy(first_seconds=1.0, cap_seconds=60.0)


class Binder:
    """Binds each pod that waits for the default scheduler and has no scheduling gate."""

    def __init__(self, kube: client.Kube, *, node: str, recorder: events.Recorder) -> None:
        self._kube, self._node, self._recorder = kube, node, recorder
        self._refused: dict[str, backoff.Backoff] = {}
        self.queue = queue.Queue(self._bind)
        query = {"fieldSelector": f"spec.nodeName=,spec.schedulerName={SCHEDULER}"}
        self.informer = informer.Informer(kube, "/api/v1/pods", query=query, on_change=self.queue.mark)

    async def _bind(self, uid: str) -> float | None:
        raw = self.informer.objects.get(uid)
        if raw is None or not _is_waiting(raw):
            self._forget(uid)
            return None
        pod = v1.pod(raw)
        meta = pod.metadata
        target = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta.name, "uid": uid}, "target": target}
        try:
            await self._kube.create(client.pod_path(meta.namespace, meta.name, "binding"), body)
        except (errors.NotFound, errors.Conflict):
            self._forget(uid)  # it is gone, or bound already
            return None
        except errors.Rejected as error:
            self._recorder.tell(pod, "Warning", "FailedScheduling", str(error))
            return self._refused.setdefault(uid, backoff.Backoff(RETRIES)).failed()
        self._forget(uid)
        self._recorder.tell(pod, "Normal", "Scheduled", f"Successfully assigned {pod.where} to {self._node}")
        return None

    def _forget(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self.queue.forget(uid)


def _is_waiting(raw: dict[str, Any]) -> bool:
    spec, meta = raw["spec"], raw["metadata"]
    return not spec.get("nodeName") and not spec.get("schedulingGates") and not meta.get("deletionTimestamp")
