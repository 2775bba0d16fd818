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


async def test_what_has_grown_is_given_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst long after the start too; at rest nothing is done."""
    mib = 1 << 20
    resident = [80, 70, 71, 73, 69, 72, 74, 71, 120, 75]  # after each trim it is looked at once more
    trimmed: list[int] = []
    done = asyncio.Event()

    def look() -> SimpleNamespace:
        seen.append(resident.pop(0))
        return SimpleNamespace(rss=seen[-1] * mib)

    seen: list[int] = []

    def trim(_pad: int) -> None:
        trimmed.append(seen[-1])
        if not resident[1:]:
            done.set()

    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=look))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(malloc_trim=trim))
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.0)
    task = asyncio.create_task(memory.trim_forever())
    await done.wait()
    task.cancel()
    assert trimmed == [80, 74, 120]


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
