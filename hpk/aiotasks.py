"""Asyncio's tasks, as the kubelet and the agents both wait for them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine


class Waitable(Protocol):
    """Something that comes once."""

    def wait(self) -> Coroutine[Any, Any, object]:
        """Wait for it."""


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks, and wait until they have ended, however that was."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def in_time(awaited: Awaitable[object], seconds: float) -> bool:
    """Wait for it, and cancel it after this time; return whether it ended before.

    Not asyncio.wait_for: before Python 3.12 it loses a cancellation that arrives together with the result.
    """
    try:
        async with asyncio.timeout(seconds):
            await awaited
    except TimeoutError:
        return False
    return True


async def first_of(*events: Waitable) -> None:
    """Wait until one of them has come."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
