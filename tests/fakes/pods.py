"""A node's pods in memory: what the kubelet's API asks the pods room."""

from __future__ import annotations

import asyncio
from typing import Any

Object = dict[str, Any]


class FakePods:
    """A :class:`hpk.node.podsource.PodSource` whose pods a test sets.

    Attributes:
        waiting: Set whenever somebody waits for a change: whoever follows has read all that there was.
    """

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self._pods: dict[tuple[str, str], Object] = {}
        self._changed = asyncio.Event()

    def put(self, pod: Object) -> None:
        """Add or replace the pod, and wake who waits."""
        self._pods[pod["metadata"]["namespace"], pod["metadata"]["name"]] = pod
        self._wake()

    def remove(self, namespace: str, name: str) -> None:
        """The pod is gone."""
        del self._pods[namespace, name]
        self._wake()

    def find(self, namespace: str, name: str) -> Object | None:
        """The pod of this name."""
        return self._pods.get((namespace, name))

    def pods(self) -> list[Object]:
        """All pods."""
        return list(self._pods.values())

    async def wait_for_change(self, uid: str) -> None:
        """Wait for any change: more often than promised, which does no harm."""
        assert uid
        self.waiting.set()
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def pod(*, state: Object, name: str = "p", uid: str = "u1", phase: str = "Running", **status: Any) -> Object:
    """A pod ``a/<name>`` of one container ``c`` in this state."""
    container = {"name": "c", "state": state, "restartCount": 0, **status}
    return {
        "metadata": {"namespace": "a", "name": name, "uid": uid},
        "spec": {"containers": [{"name": "c"}], "initContainers": [{"name": "i"}]},
        "status": {"phase": phase, "containerStatuses": [container]},
    }


RUNNING: Object = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
ENDED: Object = {"terminated": {"exitCode": 0, "containerID": "apptainer://1"}}
