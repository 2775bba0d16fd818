"""The pods as the kubelet's API shows them: the seam to :mod:`hpk.node`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpk.pods import report, watch


class Source:
    """A `hpk.node.podsource.PodSource`: the informer's pods, with the newest status that was written."""

    def __init__(self, pods: watch.Pods, reporter: report.Reporter) -> None:
        self._pods, self._reporter = pods, reporter

    def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The pod of this name, or None."""
        raw = self._pods.informer.named(namespace, name)
        return None if raw is None else self._newest(raw)

    def pods(self) -> Iterable[dict[str, Any]]:
        """All pods of the node."""
        return [self._newest(raw) for raw in self._pods.informer.objects.values()]

    async def wait_for_change(self, uid: str) -> None:
        """Return at the next change of the pod."""
        changed, stop = self._pods.listen(uid)
        try:
            if uid in self._pods.informer.objects:
                await changed.wait()
        finally:
            stop()

    def _newest(self, raw: dict[str, Any]) -> dict[str, Any]:
        current = self._reporter.current(raw)
        return raw if current is raw else {**raw, "status": current["status"]}
