"""Memory that a burst of work has freed goes back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import NoReturn

import psutil

LOOK_SECONDS = 5.0
GROWN_BYTES = 4 << 20
"""So much more than after the last time is worth another at once."""
AT_REST_LOOKS = 6
"""After so many looks, half a minute, it is done anyway: what is freed shows in nothing before."""
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


async def trim_forever() -> NoReturn:
    """Give freed memory back every half minute, and while it grows every five seconds, until cancelled.

    glibc keeps what was freed below the top of its heap for later use; after a hundred pods at once that is 15 MB and
    more, for good.  Trimming takes a few milliseconds (malloc_trim(3)); another C library has its own
    ways, and nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _pad: 0)
    process = psutil.Process()
    gc.freeze()  # what is there at the start stays: collections need not look at it
    least = looks = 0
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        looks += 1
        if looks >= AT_REST_LOOKS or process.memory_info().rss >= least + GROWN_BYTES:
            gc.collect()
            trim(0)
            least, looks = process.memory_info().rss, 0
