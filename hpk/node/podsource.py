"""What the kubelet's API asks the pods room: the seam between the two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]


class PodSource(Protocol):
    """The node's pods, as ``v1.Pod`` objects with the newest status that the kubelet knows."""

    def find(self, namespace: str, name: str) -> Object | None:
        """The pod of this name, or None.  Not a copy: it is only read."""
        ...

    def pods(self) -> Iterable[Object]:
        """All pods of the node."""
        ...

    async def wait_for_change(self, uid: str) -> None:
        """Return at the next change of this pod's status, or when the pod is gone.

        Level, not edge: a caller looks again after each return, so an extra return does no harm.
        """
        ...
