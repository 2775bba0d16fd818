"""The ``/metrics`` endpoint of the kubelet's process, in Prometheus' text format.

The registry is not the global one, so that two servers in one process (tests) do not share counters.
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
    """A collector that counts the node's pods."""

    def __init__(self, pods: podsource.PodSource) -> None:
        self._pods = pods

    def collect(self) -> Iterable[Metric]:
        """Yield the metric families."""
        by_phase = Counter((pod.get("status") or {}).get("phase", "Unknown") for pod in self._pods.pods())
        family = GaugeMetricFamily("hpk_pods", "Pods of the node, by phase", labels=["phase"])
        for phase in PHASES:
            family.add_metric([phase], by_phase[phase])
        yield family
        yield GaugeMetricFamily("kubelet_running_pods", "Pods that run", value=by_phase["Running"])


def registry(pods: podsource.PodSource) -> prometheus_client.CollectorRegistry:
    """Return a registry with the metrics of this process and its pods."""
    made = prometheus_client.CollectorRegistry()
    prometheus_client.ProcessCollector(registry=made)
    prometheus_client.GCCollector(registry=made)
    made.register(_Pods(pods))
    return made


def text(found: prometheus_client.CollectorRegistry) -> bytes:
    """Return all metrics as text."""
    return prometheus_client.generate_latest(found)
