"""Services that must not end."""

from __future__ import annotations

import asyncio

import pytest

from hpk import errors
from hpk.aio import forever


async def test_a_return_is_an_error() -> None:
    """A service that returns ends its group, by name."""

    async def service() -> None:
        return

    with pytest.raises(errors.Retryable, match="watch of pods ended"):
        await forever.forever("watch of pods", service())


async def test_errors_and_cancellation_pass() -> None:
    """What the service raises is not dressed up, cancellation included."""

    async def failing() -> None:
        raise ValueError("own")

    with pytest.raises(ValueError, match="own"):
        await forever.forever("x", failing())
    task = asyncio.create_task(forever.forever("x", asyncio.Event().wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
