"""``/metrics`` of the kubelet's own process, in Prometheus' text format.

A registry of our own, so that two servers in one process (tests) do not share counters.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import prometheus_client
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.metrics_core import Metric

    from hpk.node import podsource

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
PHASES = ("Pending", "Running", "Succeeded", "Failed", "Unknown")


class _Pods(Collector):
    """Counts the node's pods whenever it is asked."""

    def __init__(self, pods: podsource.PodSource) -> None:
        self._pods = pods

    def collect(self) -> Iterable[Metric]:
        """The families of this collector."""
        by_phase = Counter((pod.get("status") or {}).get("phase", "Unknown") for pod in self._pods.pods())
        family = GaugeMetricFamily("hpk_pods", "Pods of the node, by phase", labels=["phase"])
        for phase in PHASES:
            family.add_metric([phase], by_phase[phase])
        yield family
        yield GaugeMetricFamily("kubelet_running_pods", "Pods that run", value=by_phase["Running"])


def registry(pods: podsource.PodSource) -> prometheus_client.CollectorRegistry:
    """The metrics of this process and of its pods."""
    made = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=made)
    prometheus_client.GCCollector(registry=made)
    made.register(_Pods(pods))
    return made


def text(found: prometheus_client.CollectorRegistry) -> bytes:
    """All that the registry knows now."""
    return prometheus_client.generate_latest(found)
