"""Disk pressure: whether the kubelet can write, found by writing.

The kubelet's own thresholds are percentages of a disk that belongs to the node (evictionHard, ``imagefs.available``). A
shared home is 90 % full on most sites, and its usage says nothing about the user's quota. So a few bytes are written
and synced, which is when a file system reports an exceeded quota.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

from hpk.images import store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

LEAST_BYTES: Final = 256 << 20
"""Space left for the user. File systems with quotas (XFS, Lustre projects) report the quota's free space here."""
PROBE: Final = bytes(4096)


def measure(directories: Iterable[Path], *, may_be_anothers: bool = False) -> str:
    """Return why pods cannot be prepared now, in stable words; empty if they can. Blocks.

    With `may_be_anothers`, an unwritable directory may be one that a site keeps for its users: its images are used, and
    its free space is not checked.
    """
    return next((why for directory in directories if (why := _why(directory, may_be_anothers=may_be_anothers))), "")


def _why(directory: Path, *, may_be_anothers: bool) -> str:
    existing = next((path for path in (directory, *directory.parents) if path.is_dir()), directory)
    try:
        room = os.statvfs(existing)
        _try(existing / f".{socket.gethostname()}-{os.getpid()}.room")
        if room.f_bavail * room.f_frsize < LEAST_BYTES:
            return f"less than {LEAST_BYTES >> 20} MiB are left in {directory}"
    except OSError as error:
        if may_be_anothers and error.errno in store.NOT_OURS:
            return ""
        number = error.errno or errno.EIO
        return f"nothing can be written to {directory}: {os.strerror(number)}"
    return ""


def _try(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, PROBE)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        file.unlink(missing_ok=True)
