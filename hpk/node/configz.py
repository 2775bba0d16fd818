"""The ``/configz`` response: the settings of a kubelet that behaves as this one does.

Source: ``KubeletConfiguration``, k8s.io/kubelet/config/v1beta1. Clients, such as the conformance suite, look up single
keys. Keys without a meaning here are omitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpk.node import auth
from hpk.node.streams import wire

if TYPE_CHECKING:
    from collections.abc import Mapping


def configuration(
    *,
    address: str,
    port: int,
    max_pods: int,
    cluster_domain: str,
    log_file_mib: int,
    log_files: int,
    images: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the configuration; ``images`` holds the settings of image garbage collection."""
    return {
        "enableServer": True,
        "address": address,
        "port": port,
        "readOnlyPort": 0,
        "authentication": {
            "x509": {"clientCAFile": "in memory"},
            "webhook": {"enabled": True, "cacheTTL": _seconds(auth.TOKEN_SECONDS)},
            "anonymous": {"enabled": False},
        },
        "authorization": {
            "mode": "Webhook",
            "webhook": {
                "cacheAuthorizedTTL": _seconds(auth.ALLOW_SECONDS),
                "cacheUnauthorizedTTL": _seconds(auth.DENY_SECONDS),
            },
        },
        "clusterDomain": cluster_domain,
        "streamingConnectionIdleTimeout": _seconds(wire.IDLE_SECONDS),
        "enableDebuggingHandlers": True,
        "maxPods": max_pods,
        "containerLogMaxSize": f"{log_file_mib}Mi",
        "containerLogMaxFiles": log_files,
        "hairpinMode": "none",
        **images,
    }


def _seconds(value: float) -> str:
    return f"{value:g}s"
