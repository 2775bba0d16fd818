"""Returning memory to the system after a burst of work."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from asyncio import sslproto
from typing import NoReturn

import psutil

LOOK_SECONDS = 5.0
GROWN_BYTES = 4 << 20
"""Growth since the last trim that counts as a burst."""
LOOKS = 6
"""After a burst memory is trimmed at this many looks, at rest once in this many: half a minute."""
TLS_BUFFER_BYTES = 64 << 10
ARENAS = 2
_ARENA_MAX = -8  # of mallopt(3)


def few_arenas() -> None:
    """Make all threads share two heaps, from now on.

    glibc gives each thread its own, up to eight for each core, and no other can use memory that a burst frees in one:
    after 300 agents at once the kubelet had 149 MiB, with two heaps 131 (before the next trim). Other C libraries are
    left alone.
    """
    getattr(ctypes.CDLL(None), "mallopt", lambda _what, _value: 0)(_ARENA_MAX, ARENAS)


def small_tls_buffers() -> None:
    """Limit the read buffer of asyncio's TLS connections to 64 KiB, from now on.

    The default of 256 KiB is touched completely and kept while the connection is open, idle or not; API server and
    kubelet keep dozens of connections for a burst of pods.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


async def trim_forever() -> NoReturn:
    """Return freed memory every half minute, and every five seconds for half a minute after a burst, until cancelled.

    glibc keeps freed memory below the top of its heap; after a hundred pods at once that is 15 MB and more, for good.
    Trimming takes a few milliseconds (malloc_trim(3)). Other C libraries are left alone.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _pad: 0)
    process = psutil.Process()
    gc.freeze()  # objects from the start stay: collections can skip them
    least = busy = idle = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        busy, idle = max(0, busy - 1), idle + 1
        if process.memory_info().rss >= least + GROWN_BYTES:
            busy = LOOKS
        if busy or idle >= LOOKS:
            gc.collect()
            trim(0)
            least, idle = process.memory_info().rss, 0
