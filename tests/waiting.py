"""Waits for a condition that no event announces: what another process, a file or a fake's counter says."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIMIT_SECONDS = 60.0
"""Catches what hangs; a condition that comes true on a busy machine is far from it."""
FIRST_PAUSE_SECONDS = 0.002
GROWTH = 1.05
LONGEST_PAUSE_SECONDS = 0.02
TURNS = 20


def _pauses(longest_seconds: float) -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(GROWTH * pause, longest_seconds)


async def turns() -> None:
    """Return when all that was due in the loop has had its turn, and what followed from it at once."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def until(
    condition: Callable[[], object],
    *,
    limit_seconds: float = LIMIT_SECONDS,
    longest_pause_seconds: float = LONGEST_PAUSE_SECONDS,
) -> None:
    """Return when the condition holds, in the loop's time.

    Raises:
        TimeoutError: It did not hold within the limit.
    """
    pauses = _pauses(longest_pause_seconds)
    async with asyncio.timeout(limit_seconds):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(next(pauses))


def block_until(condition: Callable[[], object]) -> None:
    """Return when the condition holds; meanwhile the thread does nothing else.

    Raises:
        TimeoutError: It did not hold within the limit.
    """
    pauses = _pauses(LONGEST_PAUSE_SECONDS)
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(next(pauses))
