"""The pods as the kubelet's API shows them: the interface to :mod:`hpk.node`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpk.pods import report, watch


class InformerPods:
    """The `hpk.node.podsource.PodSource` of the informer's pods with their newest written status."""

    def __init__(self, pods: watch.Pods, reporter: report.Reporter) -> None:
        self._pods, self._reporter = pods, reporter

    def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the pod of this name, or None."""
        raw = self._pods.informer.named(namespace, name)
        return None if raw is None else self._newest(raw)

    def pods(self) -> Iterable[dict[str, Any]]:
        """Return all pods of the node."""
        return [self._newest(raw) for raw in self._pods.informer.objects.values()]

    async def wait_for_change(self, uid: str) -> None:
        """Wait for the next change of the pod."""
        changed, stop = self._pods.listen(uid)
        try:
            if uid in self._pods.informer.objects:
                await changed.wait()
        finally:
            stop()

    def _newest(self, raw: dict[str, Any]) -> dict[str, Any]:
        current = self._reporter.current(raw)
        return raw if current is raw else {**raw, "status": current["status"]}
