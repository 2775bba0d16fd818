"""Runs tasks beside a container or the pod: a fault is reported, and the task is restarted."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FIRST_PAUSE_SECONDS = 1.0
MOST_PAUSE_SECONDS = 60.0

Result = TypeVar("Result")


async def restarted(
    work: Callable[[], Awaitable[Result]], *, name: str, on_fault: Callable[[str], None] | None = None
) -> Result:
    """Return the work's result; start it again, after a growing pause, whenever an exception ends it.

    The name is in a user's words ("liveness probe"); `on_fault` gets one line about each failed attempt.
    """
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return await work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the work must go on
            told = fault(name, error)
        if on_fault:
            on_fault(f"{told}; it restarts in {pause:g} s")
        await asyncio.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE_SECONDS)


def fault(name: str, error: BaseException) -> str:
    """Print an unexpected exception to the job's output; return it as one line."""
    text = "".join(traceback.format_exception(error))
    print(f"The agent's {name} failed:\n{text}", end="", flush=True)  # noqa: T201 - the job's output is the log
    return f"The agent's {name} failed: {type(error).__name__}: {error}"
