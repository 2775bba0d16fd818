"""Polling Slurm for a command that waits."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from hpk import errors
from hpk.aio import backoff
from hpk.cli import slurmaccess

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("fails", [False, True])
async def test_a_slow_answer_is_followed_by_a_pause(fails: bool) -> None:  # noqa: FBT001 - pytest's way
    """A Slurm that needs longer for an answer than a pause lasts is not asked without end."""
    loop = asyncio.get_running_loop()
    asked: list[float] = []

    async def jobs() -> dict[str, Any]:
        asked.append(loop.time())
        await asyncio.sleep(60)
        if fails:
            raise errors.SlurmUnavailable("no answer")
        return {}

    slurm: Any = SimpleNamespace(jobs=jobs)
    poll = slurmaccess.JobPoll(slurm, backoff.BackoffPolicy(first_seconds=2.0, factor=1.0))
    while len(asked) < 3:
        await poll.poll()
        await asyncio.sleep(0.1)
    assert asked[0] >= 2
    assert all(62 <= later - one < 63 for one, later in itertools.pairwise(asked))
