"""Freed memory goes back to the system, again and again."""

from __future__ import annotations

import asyncio
import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hpk.aio import memory

if TYPE_CHECKING:
    import pytest


async def test_trims_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst long after the start is given back too."""
    twice = asyncio.Event()
    calls: list[int] = []

    def trim(pad: int) -> None:
        calls.append(pad)
        if len(calls) == 2:
            twice.set()

    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(memory, "TRIM_SECONDS", 0.001)
    task = asyncio.create_task(memory.trim_forever())
    await twice.wait()
    task.cancel()
    assert calls[:2] == [0, 0]


async def test_another_c_library_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without malloc_trim the service waits: its end would be an error."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    task = asyncio.create_task(memory.trim_forever())
    await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


def test_threads_share_few_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the C library has such heaps."""
    calls: list[tuple[int, int]] = []
    libc = SimpleNamespace(mallopt=lambda what, value: calls.append((what, value)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: libc)
    memory.few_arenas()
    assert calls == [(-8, 2)]
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    memory.few_arenas()
