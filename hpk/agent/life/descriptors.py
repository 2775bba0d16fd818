"""Reads and writes pipes, terminals and sockets in the event loop, by their descriptors, without a thread.

A descriptor is watched only while somebody waits for it, so a reader that pauses because its own reader is slow costs
nothing. Descriptors must be non-blocking, and must not be closed while somebody waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import struct
import termios

PIPE_BYTES = 64 << 10
"""The default capacity of a pipe."""
WIDE_BYTES = 512 << 10


async def read(descriptor: int, most: int) -> bytes:
    """Wait for data, and return at most ``most`` bytes of it; empty at the end.

    Raises:
        OSError: The connection was reset, or the disk is broken.
    """
    while True:
        try:
            return os.read(descriptor, most)
        except BlockingIOError:
            await readable(descriptor)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""  # a terminal whose last user has gone


async def write(descriptor: int, data: bytes) -> None:
    """Write everything, waiting for room.

    Raises:
        OSError: Nobody reads any more.
    """
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            await writable(descriptor)


async def readable(descriptor: int) -> None:
    """Wait for data or the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Wait for room, or until the reader is gone."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, resolve, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def widen(pipe: int) -> None:
    """Enlarge a busy pipe; the kernel may refuse, and some descriptors are no pipes."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, WIDE_BYTES)


def resize(terminal: int, *, width: int, height: int) -> None:
    """Set a terminal's size in characters, and notify its programs."""
    most = 0xFFFF
    size = struct.pack("HHHH", min(height, most), min(width, most), 0, 0)
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def words(error: OSError) -> str:
    """Return the kernel's error text as Go writes it; asyncio puts its own text into ``strerror``."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def resolve(future: asyncio.Future[None]) -> None:
    """Wake whoever waits for the future."""
    if not future.done():
        future.set_result(None)
