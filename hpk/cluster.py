"""What the Slurm cluster has, polled: the node's capacity, and what pods are measured against."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.kube import quantity
from hpk.node import nodestatus, view
from hpk.pods import admit
from hpk.slurm import flags as slurm_flags

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk import config
    from hpk.slurm import client, model

LOG = structlog.get_logger(__name__)

CAPACITY_SECONDS = 300.0
"""Pause between queries of the cluster's nodes, which seldom change."""
DETAILS_SECONDS = 3600.0
"""The same for what sinfo does not list: hidden partitions, and the nodes' architectures."""
RETRY_SECONDS = 2.0
"""The same before the first answer."""
DEFAULT_KILL_WAIT_SECONDS = 30


class ClusterMonitor:
    """What the Slurm cluster has, by its newest answer.

    Args:
        node_object: Returns the API server's node, with what others have set on it; None if it is unknown.
        runtime_handlers: Returns the handler of each RuntimeClass; None before they are known.
    """

    def __init__(
        self,
        slurm: client.Slurm,
        facts: nodestatus.NodeFacts,
        flags: Mapping[str, str | None] | None = None,
        *,
        has_subordinate_ids: bool = True,
        has_selinux: bool = False,
        network: str = "",
        node_object: Callable[[], dict[str, Any] | None] = lambda: None,
        runtime_handlers: Callable[[], Mapping[str, str] | None] = lambda: None,
    ) -> None:
        self.slurm, self.facts, self.flags = slurm, facts, flags or {}
        self._has_subordinate_ids, self._has_selinux, self._network = has_subordinate_ids, has_selinux, network
        self._node_object, self._runtime_handlers = node_object, runtime_handlers
        self._viewed: tuple[dict[str, Any] | None, view.View] = (None, view.of(None, facts))
        self.partition_names: frozenset[str] = frozenset()
        self.architectures: Mapping[str, str] = {}
        self.named_at = 0.0
        self.capacity: model.ClusterCapacity | None = None
        self.answered_at: float | None = None
        self.started_at = time.time()
        self.error = ""

    async def run(self, on_change: Callable[[], None]) -> None:
        """Query until cancelled; call `on_change` after each answer that differs from the one before."""
        while True:
            await asyncio.sleep(CAPACITY_SECONDS if self.capacity else RETRY_SECONDS)
            if await self.refresh():
                on_change()

    async def refresh(self) -> bool:
        """Query now; return whether the capacity changed. Without an answer only the error changes."""
        before = self.capacity
        try:
            self.capacity = await self.slurm.capacity()
            has_changed = before is None or before.partitions.keys() != self.capacity.partitions.keys()
            if has_changed or time.time() - self.named_at > DETAILS_SECONDS:
                self.partition_names = await self.slurm.partition_names()
                self.architectures = await self.slurm.architectures()
                self.named_at = time.time()
        except Exception as error:  # noqa: BLE001 - no output of Slurm's may end the kubelet
            self.error = str(error)
            LOG.warning("Cannot learn the cluster's capacity", error=self.error)
        else:
            self.error, self.answered_at = "", time.time()
        return self.capacity != before

    def for_pods(self) -> admit.Cluster:
        """Return what pods are measured against."""
        offered = {} if self.capacity is None else nodestatus.resources(self.facts, self.capacity)
        made = self._view()
        return admit.Cluster(
            name=self.facts.name,
            allocatable={name: quantity.parse(value) for name, value in offered.items()},
            labels=made.labels,
            taints=made.taints,
            is_unschedulable=made.is_unschedulable,
            trouble=made.trouble,
            extended=made.extended,
            runtime_handlers=self._runtime_handlers(),
            capacity=self.capacity,
            partition_names=self.partition_names,
            architectures=self.architectures,
            architecture=self.facts.system.architecture,
            flags=self.flags,
            has_subordinate_ids=self._has_subordinate_ids,
            has_selinux=self._has_selinux,
            network=self._network,
        )

    def _view(self) -> view.View:
        """Return what others have set on the node, decoded again only when it has changed."""
        raw = self._node_object()
        if raw is None or raw is not self._viewed[0]:
            self._viewed = (raw, view.of(raw, self.facts))
        return self._viewed[1]

    def for_binder(self) -> admit.Cluster | None:
        """Return the same for a pod that waits to be bound; None if the API server has no node object."""
        return None if self._node_object() is None else self.for_pods()

    async def kill_wait_seconds(self) -> int:
        """Return Slurm's KillWait, the seconds between SIGTERM and SIGKILL; Slurm's default if it does not answer."""
        try:
            return await self.slurm.kill_wait_seconds()
        except errors.SlurmUnavailable as error:
            LOG.warning("Cannot ask for KillWait, taking Slurm's default", error=str(error))
            return DEFAULT_KILL_WAIT_SECONDS


def flags_of(settings: config.Settings) -> dict[str, str | None]:
    """Return the settings' sbatch options for every pod: the account's default, overridden by HPK_FLAGS."""
    return settings.account_flags | (slurm_flags.parse(settings.flags, source="HPK_FLAGS") if settings.flags else {})
