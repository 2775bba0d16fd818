"""The C library's heap, set up for carrying bytes."""

from __future__ import annotations

import ctypes
import functools

KEPT_BYTES = 8 << 20
LARGE_BYTES = 4 << 20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3)."""


@functools.cache
def keep_what_is_freed() -> None:
    """From now on have up to 8 MiB of freed memory ready for what comes next; idempotent.

    Who carries bytes allocates and frees pieces of half a megabyte, several times for each. glibc would give each back
    to the system and fetch it again, page by page, which is more than half of what the agent does for a megabyte.
    Another C library has its own ways, and nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda _what, _value: 0)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, LARGE_BYTES)
