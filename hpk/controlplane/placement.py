"""The placement of etcd's data: in the state directory, or on this node's disk with a copy there.

etcd locks its files (open file description locks on the log, flock on the database) and waits for an fsync at each
change. Shared file systems often have no locks, and a slow fsync. See docs/adr/0007-where-etcd-lives.md for
measurements.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpk import errors
from hpk.controlplane import mounts

if TYPE_CHECKING:
    from pathlib import Path

Place = Literal["shared", "node"]
SLOW_SYNC_SECONDS = 0.02
"""Creating a pod waits for about ten fsyncs."""
_SYNCS = 20
_MOST_SECONDS = 0.5
_SYNCED_BYTES = 2048


@dataclass(frozen=True, kw_only=True)
class FileSystemTraits:
    """Measured properties of a directory's file system.

    Attributes:
        has_locks: Whether both kinds that etcd takes work.
        sync_seconds: The slowest but one of some fsyncs; 0 (irrelevant) without locks.
        reach: How far the locks hold.
    """

    has_locks: bool
    sync_seconds: float
    reach: mounts.Reach = "all"


def measure(directory: Path) -> FileSystemTraits:
    """Measure a directory; takes half a second at most.

    Raises:
        errors.Retryable: The directory cannot be written.
    """
    path = directory / f"probe.{os.urandom(4).hex()}"
    try:
        with path.open("wb") as file:
            try:
                file.write(bytes(_SYNCED_BYTES))  # a full file system may still create files
                file.flush()
                if not _can_lock(file.fileno()):
                    return FileSystemTraits(has_locks=False, sync_seconds=0.0)
                seconds = _sync_seconds(file.fileno())
                return FileSystemTraits(has_locks=True, sync_seconds=seconds, reach=mounts.reach_of(directory))
            finally:
                path.unlink()
    except OSError as error:
        raise errors.Retryable(f"Cannot write to {directory}: {error.strerror}{advice(error)}") from error


def choose(wanted: str, facts: FileSystemTraits, *, directory: Path) -> tuple[Place, str]:
    """Return the place for the setting (``auto``, ``shared`` or ``node``), and the reason for the log.

    Raises:
        errors.Fatal: The place that the setting demands does not work.
    """
    if wanted == "node":
        return "node", "HPK_ETCD=node"
    if not facts.has_locks or facts.reach == "host":
        why = "has no locks" if not facts.has_locks else "has locks that no other host sees"
        if wanted == "shared":
            raise errors.Fatal(
                f"Cannot keep etcd's data in {directory} (HPK_ETCD=shared): its file system {why}.  Set "
                "HPK_ETCD=auto, or HPK_STATE to a directory on another file system"
            )
        return "node", f"the state directory's file system {why}"
    if facts.reach == "unknown" and wanted == "auto":
        return "node", "other hosts may not see the locks of the state directory's file system"
    speed = f"an fsync of the state directory takes {facts.sync_seconds * 1000:.1f} ms"
    if wanted == "shared":
        return "shared", f"HPK_ETCD=shared; {speed}"
    return ("node" if facts.sync_seconds > SLOW_SYNC_SECONDS else "shared"), speed


def advice(error: OSError) -> str:
    """Return advice on a file system error; empty if there is none."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "; free some space there (HPK_STATE, HPK_IMAGES and HPK_SCRATCH may each name a directory elsewhere)"
    return ""


def _can_lock(descriptor: int) -> bool:
    whole = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, whole)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_seconds(descriptor: int) -> float:
    times: list[float] = []
    began = time.monotonic()
    while len(times) < _SYNCS and time.monotonic() - began < _MOST_SECONDS:
        started = time.monotonic()
        os.write(descriptor, b"x" * _SYNCED_BYTES)
        os.fsync(descriptor)
        times.append(time.monotonic() - started)
    return sorted(times)[-min(2, len(times))]
