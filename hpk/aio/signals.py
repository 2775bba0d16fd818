"""The signals that ask the program to stop.

Slurm sends SIGTERM (scancel, time limit, shutdown), a terminal SIGINT. They stay caught until the program has ended:
Slurm may send the same signal twice, and the second must not cut the orderly stop short (SIGKILL does that, after the
site's KillWait).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Caught:
    """The first signal that came."""

    def __init__(self) -> None:
        self._came = asyncio.Event()
        self.number: signal.Signals | None = None

    def came(self, number: signal.Signals) -> None:
        """Record the signal; only the first one counts."""
        self.number = self.number or number
        self._came.set()

    async def wait(self) -> signal.Signals:
        """Wait for the first signal, and return it."""
        await self._came.wait()
        assert self.number is not None
        return self.number


@contextlib.contextmanager
def caught(*numbers: signal.Signals) -> Iterator[Caught]:
    """Catch these signals (by default those that ask to stop) in the running loop during the block."""
    loop = asyncio.get_running_loop()
    stop = Caught()
    numbers = numbers or STOP
    for number in numbers:
        loop.add_signal_handler(number, stop.came, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
