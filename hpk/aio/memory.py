"""Memory that a burst of work has freed goes back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from asyncio import sslproto
from typing import NoReturn

import psutil

LOOK_SECONDS = 5.0
GROWN_BYTES = 4 << 20
"""So much more than after the last time is a burst."""
LOOKS = 6
"""After a burst it is done at so many looks, at rest at every so many: half a minute."""
TLS_BUFFER_BYTES = 64 << 10
ARENAS = 2
_ARENA_MAX = -8
"""Of mallopt(3)."""


def few_arenas() -> None:
    """Have all threads share two heaps, from now on.

    glibc gives each thread one of its own, up to eight for a core, and what a burst leaves free in one serves no other:
    after 300 agents at once the kubelet had 149 MiB, with two heaps 131 (before the next trim). Another C library has
    its own ways, and nothing is done.
    """
    getattr(ctypes.CDLL(None), "mallopt", lambda _what, _value: 0)(_ARENA_MAX, ARENAS)


def small_tls_buffers() -> None:
    """Have each TLS connection of asyncio's read through 64 KiB, from now on.

    It has 256 of its own else, all of which are touched, for as long as the connection is open, idle or not: API server
    and kubelet keep dozens for a burst of pods.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


async def trim_forever() -> NoReturn:
    """Give freed memory back every half minute, and for as long after a burst every five seconds, until cancelled.

    glibc keeps what was freed below the top of its heap for later use; after a hundred pods at once that is 15 MB and
    more, for good, and shows in nothing before.  Trimming takes a few milliseconds (malloc_trim(3)); another C library
    has its own ways, and nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _pad: 0)
    process = psutil.Process()
    gc.freeze()  # what is there at the start stays: collections need not look at it
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
