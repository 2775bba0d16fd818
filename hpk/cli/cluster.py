"""The node and pods as the API server shows them to ``hpk status`` and ``hpk up``."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.cli import reach
from hpk.node import nodestatus

if TYPE_CHECKING:
    from hpk import config
    from hpk.slurm import client as slurm_client


@dataclass(frozen=True, kw_only=True)
class Look:
    """What the API server showed.

    Attributes:
        tunnel: The tunnel to it, or empty.
        problem: Why the API server could not be asked, or empty.
        message: The node's own message if it is not Ready.
        trouble: What the control plane cannot repair by itself.
        is_cordoned: Whether new pods wait because of a ``kubectl cordon``.
    """

    url: str = ""
    tunnel: str = ""
    problem: str = ""
    is_ready: bool = False
    is_cordoned: bool = False
    message: str = ""
    trouble: str = ""
    capacity: dict[str, str] | None = None
    phases: dict[str, int] | None = None


async def look(settings: config.Settings, slurm: slurm_client.Slurm, *, has_pods: bool = False) -> Look:
    """Ask the API server once; a failure becomes the answer's problem."""
    from hpk.kube import client  # noqa: PLC0415 - takes a third of a second

    url, tunnel = "", ""
    try:
        way = await reach.find(settings, slurm)
        url, tunnel = way.server, way.by and str(way)
        async with await client.Kube.from_kubeconfig(settings.directory.kubeconfig, server=url) as kube:
            node = await kube.get(f"/api/v1/nodes/{settings.node_name}")
            pods = await kube.get("/api/v1/pods") if has_pods else {}
    except errors.HpkError as error:
        return Look(url=url, tunnel=tunnel, problem=str(error))
    ready = _condition(node, "Ready")
    return Look(
        url=url,
        tunnel=tunnel,
        is_ready=ready.get("status") == "True",
        is_cordoned=bool(node.get("spec", {}).get("unschedulable")),
        message=str(ready.get("message") or ""),
        trouble=_trouble(node),
        capacity=node.get("status", {}).get("capacity") or {},
        phases=collections.Counter(
            str(pod.get("status", {}).get("phase") or "Unknown") for pod in pods.get("items") or []
        ),
    )


def _condition(node: dict[str, Any], kind: str) -> dict[str, Any]:
    found = (c for c in node.get("status", {}).get("conditions") or [] if c.get("type") == kind)
    return next(found, {})


def _trouble(node: dict[str, Any]) -> str:
    found = _condition(node, nodestatus.TROUBLE)
    return str(found.get("message") or "") if found.get("status") == "True" else ""
