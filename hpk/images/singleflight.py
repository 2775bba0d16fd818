"""Singleflight: overlapping calls for the same key share one task."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable
    from typing import Any

_T = TypeVar("_T")


class _Flight(Generic[_T]):
    def __init__(self, task: asyncio.Task[_T]) -> None:
        self.task = task
        self.passengers = 0


class Flights(Generic[_T]):
    """Calls with the same key that overlap share one task and its failure; nothing is remembered afterwards.

    A caller that is cancelled leaves; when the last one leaves, the task is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight[_T]] = {}

    async def join(self, key: Hashable, *, start: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Return the result of the running task for key, or of a new one."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(start(), name=f"image {key}"))
            flight.task.add_done_callback(lambda _: self._land(key, flight))
        flight.passengers += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.passengers -= 1
            if not flight.passengers and not flight.task.done():
                self._land(key, flight)  # a new caller must not join a task that is being cancelled
                flight.task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([flight.task])

    def _land(self, key: Hashable, flight: _Flight[_T]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
