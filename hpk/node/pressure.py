"""Whether there is room for what the kubelet must write: measured, not assumed.

The kubelet's own thresholds are percentages of a disk that is the node's alone (evictionHard, ``imagefs.available``).
A shared home is 90 % full on most sites and says nothing of the user's quota, so it is tried: a few bytes are written
and synced, which is when a file system answers that a quota is met.
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
"""Left for the user; where a file system tells of quotas (XFS, Lustre projects), it tells them here."""
PROBE: Final = bytes(4096)


def measure(directories: Iterable[Path], *, may_be_anothers: bool = False) -> str:
    """Return why pods cannot be prepared now, in words that stay while it lasts; empty if they can be.  Blocks.

    `may_be_anothers` says whether a directory that we may not write to is one that a site keeps for its users: what is
    there is used, and room in it is not our concern.
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
