"""The node's heartbeat: a Lease, renewed independently of the kubelet's other work.

A busy kubelet or a slow Slurm must not make the node controller consider the node dead. This task therefore shares no
lock and no queue with others, and each request has its own short timeout.
Source: component-helpers/apimachinery/lease/controller.go of Kubernetes 1.37.
"""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.aio import backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk.node import node

LOG = structlog.get_logger(__name__)

NAMESPACE = "kube-node-lease"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
LEASE_SECONDS = 40
"""The lease's duration; the node controller's grace period is 50 s."""
RENEW_SECONDS = 10.0
REQUEST_SECONDS = 10.0
JITTER = 0.04

Object = dict[str, Any]


def renewed(lease: Object | None, *, name: str, node_uid: str, now: float) -> Object:
    """Return the lease to write: a new one, or the given one with a later renew time."""
    made: Object = dict(lease) if lease else {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    metadata = {"namespace": NAMESPACE, **made.get("metadata", {}), "name": name}
    if node_uid:
        # The owner reference deletes the lease with the node.
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}]
    made["metadata"] = metadata
    # Never move backwards: after a move to a host with a slower clock, the lease would look stale until the clock
    # catches up.
    at = max(datetime.fromtimestamp(now, tz=UTC), _last(made) + timedelta(microseconds=1))
    made["spec"] = {
        **made.get("spec", {}),
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": at.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    return made


def _last(lease: Object) -> datetime:
    """Return the last renew time, or the distant past if there is none."""
    try:
        return datetime.fromisoformat(lease["spec"]["renewTime"])
    except (KeyError, TypeError, ValueError):
        return datetime.fromtimestamp(0, tz=UTC)


class LeaseController:
    """The controller that renews the lease while :meth:`run` runs."""

    def __init__(
        self,
        kube: node.Api,
        name: str,
        *,
        clock: Callable[[], float] = time.time,
        renew_seconds: float = RENEW_SECONDS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._kube, self._name, self._clock, self._chance = kube, name, clock, chance
        self._renew_seconds = renew_seconds
        self._path = f"{LEASES}/{name}"
        self._latest: Object | None = None

    async def run(self) -> None:
        """Renew until cancelled, and retry for as long as the API server is unavailable."""
        pauses = backoff.Backoff(backoff.BackoffPolicy(first_seconds=0.1, cap_seconds=7.0))
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self.renew()
                pauses.succeeded()
                pause = self._renew_seconds * (1 + JITTER * self._chance())
            except (errors.HpkError, TimeoutError) as error:
                pause = pauses.failed()
                LOG.warning("Cannot renew the lease", node=self._name, error=str(error) or "timed out")
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """Renew the lease once, and create it if it is missing.

        Normally this is one PUT of the last response. After a conflict or a deletion, the lease is read again.

        Raises:
            errors.HpkError: The renewal failed; call again.
        """
        if self._latest is not None:
            try:
                self._latest = await self._write(self._latest)
            except (errors.NotFound, errors.Conflict):
                self._latest = None
            else:
                return
        try:
            found = await self._kube.get(self._path)
        except errors.NotFound:
            made = renewed(None, name=self._name, node_uid=await self._node_uid(), now=self._clock())
            self._latest = await self._kube.create(LEASES, made)
        else:
            self._latest = await self._write(found, node_uid=await self._node_uid())

    async def _write(self, lease: Object, *, node_uid: str = "") -> Object:
        if not node_uid and not lease["metadata"].get("ownerReferences"):
            node_uid = await self._node_uid()
        return await self._kube.replace(
            self._path, renewed(lease, name=self._name, node_uid=node_uid, now=self._clock())
        )

    async def _node_uid(self) -> str:
        """Return the Node's UID, or an empty string if there is no node yet; the reference is added later."""
        try:
            return str((await self._kube.get(f"/api/v1/nodes/{self._name}"))["metadata"]["uid"])
        except errors.NotFound:
            return ""
