"""The kubelet's request to end the pod if the link cannot deliver it: a file in the pod's directory, and a signal.

So the pod keeps its grace if the control plane moves, the network fails, or the kubelet restarts.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hpk import aiotasks, jobdir

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records

LOOK_SECONDS = 2.0
"""How often a disconnected agent looks; a connected one does not."""


class EndTarget(Protocol):
    """The pod."""

    def end(self, reason: str, *, message: str = "", grace_seconds: float | None = None) -> None:
        """End it; later calls may only shorten the grace."""


class EndRequestWatcher:
    """Looks for the kubelet's request, and ends the pod."""

    def __init__(self, path: str, pod: EndTarget, *, is_connected: Callable[[], bool]) -> None:
        self._path, self._pod, self._is_connected = path, pod, is_connected
        self._is_signalled = asyncio.Event()

    def signal(self) -> None:
        """End the pod, with the grace of a request if there is one; the kubelet may have failed to write it."""
        self._is_signalled.set()

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await aiotasks.in_time(self._is_signalled.wait(), LOOK_SECONDS)
            is_signalled = self._is_signalled.is_set()
            self._is_signalled.clear()
            if not is_signalled and self._is_connected():
                continue
            request: records.EndRequest | None = await asyncio.to_thread(jobdir.peek_json, self._path)
            if request is not None:
                self._pod.end(request["reason"], message=request["message"], grace_seconds=request["grace_seconds"])
            elif is_signalled:
                self._pod.end("Deleted")
