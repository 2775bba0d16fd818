"""A deadline that can be moved nearer while others wait for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Deadline:
    """A moment on the event loop's clock."""

    def __init__(self, seconds: float) -> None:
        self._at = asyncio.get_running_loop().time() + seconds
        self._moved = asyncio.Event()

    @property
    def left_seconds(self) -> float:
        """The time left; negative after the deadline."""
        return self._at - asyncio.get_running_loop().time()

    def shorten(self, seconds: float) -> None:
        """Move the deadline to so many seconds from now, unless it is earlier already."""
        at = asyncio.get_running_loop().time() + seconds
        if at < self._at:
            self._at = at
            self._moved.set()

    async def allows(self, work: Coroutine[Any, Any, Any], *, least_seconds: float = 0.0) -> bool:
        """Do the work, and return whether it was done in time; otherwise cancel it.

        The work gets ``least_seconds``, even if the deadline is nearer.
        """
        task = asyncio.ensure_future(work)
        least = asyncio.get_running_loop().time() + least_seconds
        try:
            while True:
                self._moved.clear()
                moved = asyncio.ensure_future(self._moved.wait())
                left = max(self._at, least) - asyncio.get_running_loop().time()
                done, _ = await asyncio.wait({task, moved}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
                if task in done:
                    task.result()
                    return True
                if moved not in done:
                    return False
        finally:
            task.cancel()
