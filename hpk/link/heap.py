"""The C library's heap, tuned for streams of bytes."""

from __future__ import annotations

import ctypes
import functools

KEPT_BYTES = 8 << 20
LARGE_BYTES = 4 << 20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)


@functools.cache
def keep_what_is_freed() -> None:
    """Keep up to 8 MiB of freed memory for reuse, from now on; idempotent.

    Carrying bytes allocates and frees pieces of half a megabyte, several times for each. glibc would return each to the
    system and fetch it again, page by page: more than half of the agent's work per megabyte. Other C libraries are left
    alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda _what, _value: 0)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
