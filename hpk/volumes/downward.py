"""The downward API: a pod's own fields and resources (pkg/fieldpath and pkg/api/v1/resource upstream).

Only the job knows the pod's and the host's addresses: :data:`hpk.jobdir.POD_IP` is their placeholder.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING

from hpk import errors, jobdir
from hpk.kube import quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk.kube import v1

_KEYED = re.compile(r"^metadata\.(labels|annotations)\['(.*)'\]$")


def field(pod: v1.Pod, path: str) -> str:
    """Return the value of a ``fieldRef``, formatted as by the kubelet.

    Raises:
        errors.PodRefused: There is no such field.
    """
    meta = pod.metadata
    if keyed := _KEYED.match(path):
        source = meta.labels if keyed[1] == "labels" else meta.annotations
        return source.get(keyed[2], "")
    values = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "metadata.labels": as_lines(meta.labels),
        "metadata.annotations": as_lines(meta.annotations),
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": jobdir.HOST_IP,
        "status.hostIPs": jobdir.HOST_IP,
        "status.podIP": jobdir.POD_IP,
        "status.podIPs": jobdir.POD_IP,
    }
    if path not in values:
        raise errors.PodRefused(f"fieldRef '{path}' is not supported (known: {', '.join(values)})")
    return values[path]


def as_lines(values: Mapping[str, str]) -> str:
    """Return labels or annotations as sorted ``key="escaped value"`` lines, without a final newline."""
    return "\n".join(f"{key}={_quoted(values[key])}" for key in sorted(values))


def _quoted(text: str) -> str:
    """Quote like Go's strconv.Quote, for the characters that occur in practice."""
    short = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\a": "\\a", "\b": "\\b"}
    short |= {"\f": "\\f", "\v": "\\v"}
    return '"' + "".join(short.get(c) or (c if c.isprintable() else _escaped(c)) for c in text) + '"'


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"  # noqa: PLR2004


def resource(pod: v1.Pod, container: str, ref: v1.ResourceFieldSelector, *, allocatable: Mapping[str, Decimal]) -> str:
    """Return the value of a ``resourceFieldRef``: ceil(quantity / divisor); a missing limit is the node's allocatable.

    Raises:
        errors.PodRefused: There is no such container or resource.
    """
    named = ref.container_name or container
    found = next((c for c in (*pod.all_containers, *pod.spec.ephemeral_containers) if c.name == named), None)
    if found is None:
        raise errors.PodRefused(f"resourceFieldRef names container '{named}', which the pod does not have")
    kind, _, name = ref.resource.partition(".")
    if kind not in {"limits", "requests"}:
        raise errors.PodRefused(f"resourceFieldRef '{ref.resource}' is not supported (known: limits.*, requests.*)")
    limits, requests = found.resources.limits, found.resources.requests
    fallback = allocatable.get(name, Decimal(0)) if kind == "limits" else limits.get(name, 0)
    value = (limits if kind == "limits" else requests).get(name, fallback)
    amount = value if isinstance(value, Decimal) else quantity.parse(value)
    divisor = quantity.parse(ref.divisor) or Decimal(1)
    return str(quantity.ceiling(amount / divisor))
