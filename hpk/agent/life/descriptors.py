"""Reading and writing pipes, terminals and sockets in the event loop, by their descriptors, without a thread.

A descriptor is watched only while somebody waits for it: a reader that holds back, because whoever gets the data has
no room, costs nothing meanwhile. Descriptors must be non-blocking, and not be closed while somebody waits.
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
"""What a pipe holds unless it is asked to hold more."""
WIDE_BYTES = 512 << 10


async def read(descriptor: int, most: int) -> bytes:
    """What there is, at most so many bytes, when there is something; nothing at the end.

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
    """Write all, waiting for room.

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
    """Wait for input or the end."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(descriptor, resolve, ready)
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Wait for room, or for the reader to go."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_writer(descriptor, resolve, ready)
    try:
        await ready
    finally:
        loop.remove_writer(descriptor)


def widen(pipe: int) -> None:
    """Have a pipe through which much passes hold more; the kernel may refuse, and some are no pipes."""
    with contextlib.suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, WIDE_BYTES)


def resize(terminal: int, *, width: int, height: int) -> None:
    """Tell a terminal its size in characters, and its programs that it has changed."""
    most = 0xFFFF
    size = struct.pack("HHHH", min(height, most), min(width, most), 0, 0)
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)


def words(error: OSError) -> str:
    """Return what the kernel says, as Go writes it; asyncio puts its own words into ``strerror``."""
    return os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)


def resolve(future: asyncio.Future[None]) -> None:
    """Have whoever waits for it go on."""
    if not future.done():
        future.set_result(None)
