"""The kubelet's wish to end the pod, where the link does not bring it: a file in the pod's directory, and a signal.

A control plane that moves, a network that is cut, a kubelet that is restarted: the pod keeps its grace all the same.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from hpk import aiotasks, jobdir

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records

LOOK_SECONDS = 2.0
"""How often an agent that is off the line looks; one that is connected never does."""


class WishTarget(Protocol):
    """The pod."""

    def end(self, reason: str, *, message: str = "", grace_seconds: float | None = None) -> None:
        """End it; said again, it may only shorten the grace."""


class Wishes:
    """Looks for the kubelet's wish, and has the pod ended by it."""

    def __init__(self, path: str, pod: WishTarget, *, is_connected: Callable[[], bool]) -> None:
        self._path, self._pod, self._is_connected = path, pod, is_connected
        self._is_signalled = asyncio.Event()

    def signal(self) -> None:
        """The kubelet could not write: end the pod, within the grace of a wish if one is there, else within its own."""
        self._is_signalled.set()

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await aiotasks.in_time(self._is_signalled.wait(), LOOK_SECONDS)
            is_signalled = self._is_signalled.is_set()
            self._is_signalled.clear()
            if not is_signalled and self._is_connected():
                continue
            wish: records.Wish | None = await asyncio.to_thread(jobdir.peek_json, self._path)
            if wish is not None:
                self._pod.end(wish["reason"], message=wish["message"], grace_seconds=wish["grace_seconds"])
            elif is_signalled:
                self._pod.end("Deleted")
