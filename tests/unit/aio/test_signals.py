"""Signals that ask for an end."""

from __future__ import annotations

import asyncio
import os
import signal

from hpk.aio import signals


async def test_first_signal_is_told_and_later_ones_are_harmless() -> None:
    """The first one ends the wait; a second of any kind changes nothing and kills nobody."""
    with signals.caught() as stop:
        waiting = asyncio.create_task(stop.wait())
        os.kill(os.getpid(), signal.SIGTERM)
        assert await waiting is signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0)
        assert await stop.wait() is signal.SIGTERM


async def test_handlers_go_with_the_block() -> None:
    """After the block the signals mean what they meant."""
    before = signal.getsignal(signal.SIGUSR1)
    with signals.caught(signal.SIGUSR1):
        assert signal.getsignal(signal.SIGUSR1) != before
    assert signal.getsignal(signal.SIGUSR1) == before
