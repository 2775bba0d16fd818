"""The writer of pods' statuses: only changes, never backwards, and only to the intended pod.

A patch carries the UID, so that a pod created anew under the same name rejects it. What others wrote (conditions,
labels) is left alone; what others overwrote is written again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.kube import client
from hpk.pods import compare, status

if TYPE_CHECKING:
    from datetime import datetime

    from hpk.kube import v1

LOG = structlog.get_logger(__name__)


class StatusWriter:
    """A writer that remembers its last writes, since the informer's copy lags by one watch event."""

    def __init__(self, kube: client.Kube) -> None:
        self._kube = kube
        self._written: dict[str, dict[str, Any]] = {}

    def current(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return the newer of the informer's copy of the pod and the answer to our last write."""
        written = self._written.get(raw["metadata"]["uid"])
        if written is not None and _version(written) > _version(raw):
            return written
        return raw

    async def report(self, raw: dict[str, Any], pod: v1.Pod, facts: status.StatusInputs, *, now: datetime) -> str:
        """Write the status that follows from the facts; return the phase that the API server now has.

        Raises:
            errors.ApiUnavailable: It is unreachable; call again with the same facts.
        """
        current = self.current(raw).get("status") or {}
        wanted = compare.merge_transitions(status.status(pod, facts, now=now), current)
        if not compare.may_follow(current, wanted) or compare.is_reported(wanted, current):
            return str(current.get("phase", "Pending"))
        meta = pod.metadata
        body = {"metadata": {"uid": meta.uid}, "status": wanted}
        try:
            answer = await self._kube.patch(client.pod_path(meta.namespace, meta.name, "status"), body)
        except (errors.NotFound, errors.Conflict) as error:
            LOG.info("Did not write a status: the pod is gone", pod=pod.where, uid=meta.uid, why=str(error))
            return str(current.get("phase", "Pending"))
        self._written[meta.uid] = {"metadata": answer["metadata"], "status": answer["status"]}
        LOG.debug("Wrote a status", pod=pod.where, uid=meta.uid, phase=wanted["phase"])
        return str(wanted["phase"])

    async def remove(self, pod: v1.Pod) -> None:
        """Delete the object of a pod of which nothing runs; do nothing if it is gone or its name is reused."""
        meta = pod.metadata
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta.uid}}
        try:
            await self._kube.delete(client.pod_path(meta.namespace, meta.name), body=body)
        except (errors.NotFound, errors.Conflict):
            LOG.debug("The pod was gone already", pod=pod.where, uid=meta.uid)

    def forget(self, uid: str) -> None:
        """Forget a pod's last write."""
        self._written.pop(uid, None)


def _version(item: dict[str, Any]) -> int:
    return int(item["metadata"].get("resourceVersion") or 0)
