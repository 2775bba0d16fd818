"""What happens to a task that an unforeseen fault has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hpk.agent.life import supervise

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def failing(times: int) -> Callable[[], Awaitable[str]]:
    """Work that fails so often before it succeeds."""
    left = [None] * times

    async def work() -> str:
        if left:
            left.pop()
            raise LookupError("of all things")
        return "done"

    return work


async def test_work_is_begun_again_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault is told in a line, with its traceback in the job's output, and the pauses grow to a bound."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    told: list[str] = []
    assert await supervise.restarted(failing(9), name="liveness probe", on_fault=told.append) == "done"
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert told[0] == "The agent's liveness probe failed: LookupError: of all things; it restarts in 1 s"
    assert "Traceback" in capsys.readouterr().out


async def test_who_is_cancelled_ends() -> None:
    """An end that is wanted is no fault."""
    task = asyncio.create_task(supervise.restarted(asyncio.Event().wait, name="x"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
