"""The scheduler's view of the Node object: labels, taints, cordon, and resources that others have added."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from hpk.kube import quantity, selectors
from hpk.node import nodestatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

OURS = frozenset({"cpu", "memory", "pods", "ephemeral-storage", *nodestatus.EXTENDED_RESOURCES.values()})
"""The resources that the kubelet publishes."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The node as others have changed it.

    Attributes:
        labels: All labels, the kubelet's own included.
        trouble: Why it is not ready; empty if it is.
        extended: Resources that others have added.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[selectors.Taint, ...] = ()
    is_unschedulable: bool = False
    trouble: str = ""
    extended: Mapping[str, Decimal] = field(default_factory=dict)


def of(raw: dict[str, Any] | None, facts: nodestatus.NodeFacts) -> View:
    """Return the view of the API server's node, or of the one that the kubelet will create."""
    if raw is None:
        return View(labels=nodestatus.labels(facts))
    spec, status = raw.get("spec") or {}, raw.get("status") or {}
    # As in a kubelet, capacity without a matching allocatable is all allocatable.
    offered = {**(status.get("capacity") or {}), **(status.get("allocatable") or {})}
    return View(
        labels={**nodestatus.labels(facts), **(raw["metadata"].get("labels") or {})},
        taints=tuple(msgspec.convert(spec.get("taints") or [], list[selectors.Taint])),
        is_unschedulable=bool(spec.get("unschedulable")),
        trouble=_trouble(status.get("conditions") or []),
        extended={name: quantity.parse(value) for name, value in offered.items() if name not in OURS},
    )


def _trouble(conditions: list[dict[str, Any]]) -> str:
    found = next((one for one in conditions if one["type"] == "Ready" and one["status"] != "True"), None)
    return "" if found is None else str(found.get("message") or found.get("reason") or "unknown").rstrip(".")
