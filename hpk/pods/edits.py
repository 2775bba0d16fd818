"""Changed images of a running pod's containers: each is prepared, then sent to the pod's agent.

The API server lets the images of a running pod change. Like the kubelet, the agent restarts a container whose image
changed; one that is not running gets it at its next start. The agent's report names the image that it was sent,
whichever kubelet sent it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.pods import ephemeral

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import records
    from hpk.kube import v1
    from hpk.pods import services


class Edits(ephemeral.Ephemeral):
    """The changed images of one pod, sent as its ephemeral containers are.

    Attributes:
        images: (image, image id) by container name, as the pod was started.
    """

    def __init__(self, uid: str, used: services.Services) -> None:
        super().__init__(uid, used)
        self.images: Mapping[str, tuple[str, str]] = {}

    def _missing(self, pod: v1.Pod, newest: records.Report) -> list[v1.Container]:
        return [c for c in pod.all_containers if self._is_changed(c, newest)]

    def _is_changed(self, container: v1.Container, newest: records.Report) -> bool:
        record, started = newest["containers"].get(container.name), self.images.get(container.name)
        told = record.get("image") if record else None
        image = told or (started[0] if started else None)
        return image is not None and image != container.image

    def is_pending(self, pod: v1.Pod) -> bool:
        """Return whether a change must still be sent to the agent."""
        newest = self._s.agents.newest(self.uid)
        return newest is not None and not newest["finished_at"] and bool(self._missing(pod, newest))

    def _check(self, container: v1.Container) -> None:
        """Allow the change: the API server lets only the image change."""
