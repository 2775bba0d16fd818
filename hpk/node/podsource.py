"""The interface through which the kubelet's API reads pods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

Object = dict[str, Any]


class PodSource(Protocol):
    """The node's pods, as ``v1.Pod`` objects with the newest status that the kubelet knows."""

    def find(self, namespace: str, name: str) -> Object | None:
        """Return the pod of this name, or None. It is not a copy: do not change it."""

    def pods(self) -> Iterable[Object]:
        """Return all pods of the node."""

    async def wait_for_change(self, uid: str) -> None:
        """Wait until this pod's status changes, or the pod is gone.

        Level-triggered: callers check again after each return, so an extra return does no harm.
        """
