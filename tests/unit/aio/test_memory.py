"""Freed memory goes back to the system, again and again."""

from __future__ import annotations

import asyncio
import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil

from hpk.aio import memory

if TYPE_CHECKING:
    import pytest


async def test_what_is_free_is_given_back_while_it_grows_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a burst at each look; at rest at every sixth, for what has been freed shows in nothing before."""
    resident = [80, 70, 71, 75, 71, 72, 72, 73, 72, 74, 60]
    trimmed: list[int] = []
    done = asyncio.Event()

    def look() -> SimpleNamespace:
        seen.append(resident.pop(0))
        return SimpleNamespace(rss=seen[-1] << 20)

    seen: list[int] = []

    def trim(_pad: int) -> None:
        trimmed.append(seen[-1])
        if len(trimmed) == 3:
            done.set()

    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=look))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    task = asyncio.create_task(memory.trim_forever())
    await done.wait()
    task.cancel()
    assert trimmed == [80, 75, 74]


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
