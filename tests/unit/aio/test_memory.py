"""Freed memory goes back to the system, again and again."""

from __future__ import annotations

import asyncio
import ctypes
import ssl
from asyncio import sslproto
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from hpk.aio import memory


@pytest.mark.parametrize(
    ("resident", "trimmed"),
    [
        ([10] * 24, [0, 1, 2, 3, 4, 5, 11, 17, 23]),  # the start is a burst
        ([10] * 8 + [15] + [11] * 20, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 19, 25]),
        ([10] * 8 + [15, 11, 16] + [11] * 12, [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15, 21]),
    ],
)
@pytest.mark.virtual_time
async def test_what_is_free_is_given_back_after_bursts_and_now_and_then(
    monkeypatch: pytest.MonkeyPatch, resident: list[int], trimmed: list[int]
) -> None:
    """At six looks after it has grown by 4 MiB; at rest at every sixth, for what has been freed shows in nothing."""
    looks, done = iter(resident), asyncio.Event()
    found: list[int] = []
    seen = -1
    is_after = False

    def look() -> SimpleNamespace:
        """After each trim it is looked at once more, and all that could go has gone."""
        nonlocal seen, is_after
        if is_after:
            is_after = False
            return SimpleNamespace(rss=10 << 20)
        if (now := next(looks, None)) is None:
            done.set()
            now = 10
        else:
            seen += 1
        return SimpleNamespace(rss=now << 20)

    def trim(_pad: int) -> None:
        nonlocal is_after
        is_after = True
        found.append(seen)

    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=look))
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace(malloc_trim=trim))
    task = asyncio.create_task(memory.trim_forever())
    await done.wait()
    task.cancel()
    assert found[: len(trimmed)] == trimmed


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


async def test_a_tls_connection_reads_through_a_small_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asyncio takes the size from where it is set."""
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)
    memory.small_tls_buffers()
    loop = asyncio.get_running_loop()
    made: Any = sslproto.SSLProtocol(loop, asyncio.Protocol(), ssl.create_default_context(), loop.create_future())
    made._get_app_transport().abort()
    assert len(made._ssl_buffer) == memory.TLS_BUFFER_BYTES
