"""The controller of the Node object: registration, then status updates of our own fields (`nodestatus`)."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from hpk import errors
from hpk.aio import backoff
from hpk.node import nodestatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk.kube import client

LOG = structlog.get_logger(__name__)

NODES = "/api/v1/nodes"
SYNC_SECONDS = 10.0
"""Interval of status computation and comparison with the server's copy."""
REPORT_SECONDS = 300.0
"""Interval of status updates without a change."""
REQUEST_SECONDS = 10.0

Object = dict[str, Any]


class Api(Protocol):
    """The part of :class:`hpk.kube.client.Kube` that is used in this room."""

    async def get(self, path: str, *, query: Mapping[str, Any] | None = None) -> Object:
        """Return the object from a GET request."""

    async def create(self, path: str, body: Object) -> Object:
        """Create the object with a POST request."""

    async def replace(self, path: str, body: Object) -> Object:
        """Replace the object with a PUT request."""

    async def patch(self, path: str, body: Any, *, kind: client.PatchKind = "strategic") -> Object:
        """Change the object with a PATCH request."""


class NodeController:
    """The controller that registers the node and updates its object while :meth:`run` runs.

    Attributes:
        registered: Set once the node's object is up to date.
        uid: The Node's UID; empty before registration.
    """

    def __init__(
        self,
        kube: Api,
        facts: nodestatus.NodeFacts,
        observe: Callable[[], nodestatus.NodeObservation],
        *,
        clock: Callable[[], float] = time.time,
        sync_seconds: float = SYNC_SECONDS,
        report_seconds: float = REPORT_SECONDS,
    ) -> None:
        self.registered = asyncio.Event()
        self.uid = ""
        self._kube, self._facts, self._observe, self._clock = kube, facts, observe, clock
        self._sync_seconds, self._report_seconds = sync_seconds, report_seconds
        self._path = f"{NODES}/{facts.name}"
        self._written_at: float | None = None

    async def run(self) -> None:
        """Sync until cancelled, and retry for as long as the API server is unavailable."""
        pauses = backoff.Backoff(backoff.BackoffPolicy(first_seconds=0.1, cap_seconds=7.0))
        while True:
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self.sync()
                pause = self._sync_seconds
                pauses.succeeded()
            except (errors.HpkError, TimeoutError) as error:
                pause = pauses.failed()
                LOG.warning("Cannot update the node", node=self._facts.name, error=str(error) or "timed out")
            await asyncio.sleep(pause)

    async def sync(self) -> None:
        """Update the server's node once, and create it if it is missing.

        Raises:
            errors.HpkError: The update failed; call again.
        """
        seen = self._observe()
        try:
            node = await self._kube.get(self._path)
        except errors.NotFound:
            node = await self._register(seen)
        now = self._clock()
        is_due = self._written_at is None or now - self._written_at >= self._report_seconds
        patch = nodestatus.status_patch(node, self._facts, seen, now=now, is_due=is_due)
        if patch is not None:
            try:
                node = await self._kube.patch(f"{self._path}/status", patch)
            except (errors.NotFound, errors.Conflict) as error:
                # The node was deleted or recreated since we read it. The next sync registers or reconciles it.
                self._written_at = None
                raise errors.ApiUnavailable(f"Cannot update node {self._facts.name}: it was recreated") from error
            self._written_at = now
        self.uid = node["metadata"]["uid"]
        self.registered.set()

    async def _register(self, seen: nodestatus.NodeObservation) -> Object:
        now = self._clock()
        try:
            node = await self._kube.create(NODES, nodestatus.new_node(self._facts, seen, now=now))
        except errors.Conflict:
            return await self._kube.get(self._path)
        self._written_at = now
        LOG.info("Registered the node", node=self._facts.name, uid=node["metadata"]["uid"])
        return node
