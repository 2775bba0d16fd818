"""Tasks: one of several is waited for, and what is cancelled has ended."""

from __future__ import annotations

import asyncio

import pytest

from hpk import aiotasks


async def test_the_first_event_is_enough() -> None:
    """The others are not waited for any more, and can still come."""
    early, late = asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().call_soon(early.set)
    await aiotasks.first_of(late, early)
    assert not late.is_set()


async def test_what_takes_too_long_is_cancelled() -> None:
    """Whoever waits knows whether it ended; its own errors pass."""
    loop = asyncio.get_running_loop()
    done, late, failed = loop.create_future(), loop.create_future(), loop.create_future()
    done.set_result(None)
    failed.set_exception(OSError())
    assert await aiotasks.in_time(done, 60)
    assert not await aiotasks.in_time(late, 0)
    assert late.cancelled()
    with pytest.raises(OSError):  # noqa: PT011 - it says nothing
        await aiotasks.in_time(failed, 60)


async def test_cancelled_tasks_have_ended_whatever_they_raise() -> None:
    """One that fails while it is cancelled, or before, fails nobody else."""
    has_ended = False

    async def fail() -> None:
        nonlocal has_ended
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            has_ended = True
            raise OSError

    failing = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await aiotasks.cancel(failing)
    assert has_ended
    with pytest.raises(OSError):  # noqa: PT011 - it says nothing
        failing.result()
