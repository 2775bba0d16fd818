"""The end of what a test has started in the background."""

from __future__ import annotations

import asyncio
from typing import Any


async def end(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks and wait until they are over.

    Raises:
        Exception: What one of them failed with, before it was cancelled or since; the first of several.
    """
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in ended:
        if isinstance(outcome, Exception):
            raise outcome
