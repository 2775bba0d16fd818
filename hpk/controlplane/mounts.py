"""How far the locks of a mounted file system reach. Pure but for reading /proc/self/mountinfo.

A granted lock proves nothing: NFS with ``nolock`` or ``local_lock``, Lustre with ``localflock``, BeeGFS by default, and
most FUSE file systems grant it to each host separately. Only the mount's type and options are trusted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Reach = Literal["all", "host", "unknown"]
"""Locks hold between all hosts, on one host only, or the mount does not say."""

# File systems of one machine: other hosts reach them through that machine, which holds the locks.
_DISKS = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"})
# Cluster file systems, with locks between all hosts whatever the mount options.
_CLUSTERS = frozenset({"ceph", "gfs2", "gpfs", "ocfs2"})
_MOUNTINFO = "/proc/self/mountinfo"


@dataclass(frozen=True)
class MountedFileSystem:
    """A mounted file system."""

    point: str
    kind: str
    options: frozenset[str]


def mounts(text: str) -> list[MountedFileSystem]:
    """Return the mounts listed in a mountinfo file (proc_pid_mountinfo(5))."""
    found = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, (kind, _, options) = before.split(), after.split(maxsplit=2)
        found.append(MountedFileSystem(_plain(fields[4]), kind, frozenset(options.split(","))))
    return found


def of(path: str, listed: list[MountedFileSystem]) -> MountedFileSystem | None:
    """Return the mount of a path: the last among those with the deepest mount point."""
    holding = [one for one in listed if path == one.point or path.startswith(one.point.rstrip("/") + "/")]
    return max(reversed(holding), key=lambda one: len(one.point), default=None)


def reach(mount: MountedFileSystem | None) -> Reach:
    """Return how far the locks of a mount reach (nfs(5), mount.lustre(8))."""
    if mount is None:
        return "unknown"
    if mount.kind in _DISKS or mount.kind in _CLUSTERS:
        return "all"
    if mount.kind in ("nfs", "nfs4"):
        is_local = "nolock" in mount.options or any(
            option.startswith("local_lock=") and option != "local_lock=none" for option in mount.options
        )
        return "host" if is_local else "all"
    if mount.kind == "lustre":
        return "host" if "localflock" in mount.options else "all"
    return "unknown"


def reach_of(directory: Path) -> Reach:
    """Return how far locks in a directory reach."""
    try:
        text = Path(_MOUNTINFO).read_text(encoding="utf-8", errors="surrogateescape")
        return reach(of(str(directory.resolve()), mounts(text)))
    except (OSError, ValueError, IndexError):
        return "unknown"


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
