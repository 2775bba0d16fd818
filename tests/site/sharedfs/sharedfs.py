#!/usr/bin/python3
"""Show a directory as a cluster's shared file system shows it.

No chown to other ids, no extended attributes, a slow fsync, and what other hosts change is seen a moment later, as on
NFS and Lustre; no locks, or locks of which other hosts hear nothing, as on Lustre with localflock and on BeeGFS:

    sharedfs [--fsync SECONDS] [--locks none|host|all] EXPORT MOUNTPOINT

It serves one host, as that host's NFS client would, until it is unmounted or killed. A file .full-UID in EXPORT puts
that user over quota (EDQUOT), a file .readonly-UID lets the user change nothing (EROFS). A file that is removed while
it is open on the same host stays under a hidden name until it is closed, as on NFS.
"""

# Each operation is one system call, named as such.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH112, PTH115, PTH211

from __future__ import annotations

import argparse
import ctypes
import errno
import fcntl
import os
import stat
import sys
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("FUSE_LIBRARY_NAME", "fuse3")  # libfuse 2 may be there too, and would be preferred
import mfusepy

if TYPE_CHECKING:
    from collections.abc import Iterator

CACHED_SECONDS = 1  # for how long what other hosts changed may stay unseen
AT_FDCWD, AT_SYMLINK_NOFOLLOW, MNT_DETACH = -100, 0x100, 2
# The kernel says where each write goes, and O_DIRECT's alignment is the caller's affair, not ours.
NOT_OURS = os.O_APPEND | os.O_DIRECT
OFD = {
    fcntl.F_GETLK: fcntl.F_OFD_GETLK,
    fcntl.F_SETLK: fcntl.F_OFD_SETLK,
    fcntl.F_SETLKW: fcntl.F_OFD_SETLKW,
}
libc = ctypes.CDLL(None, use_errno=True)


def call(function: Any, *args: object) -> int:
    """Call a function of libc; an OSError of its errno if it fails."""
    if function(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return 0


class Home:
    """libfuse's operations on the export. The kernel checks permissions (default_permissions).

    It keeps locks as well, which bind this host only, for no operation here takes them.
    Descriptors stand in `handle.fh`; paths begin with a slash, which is the export.
    """

    use_ns = True

    def __init__(self, export: str, *, fsync_seconds: float) -> None:
        self.export = export
        self.fsync_seconds = fsync_seconds

    def real(self, path: str) -> str:
        """Return where the file is in the export."""
        return self.export + path

    def refuse(self, *, takes_space: bool) -> None:
        """Refuse what the caller may not do: a user over quota may still rename and remove."""
        uid = mfusepy.fuse_get_context()[0]
        if os.access(f"{self.export}/.readonly-{uid}", os.F_OK):
            raise OSError(errno.EROFS, "readonly")
        if takes_space and os.access(f"{self.export}/.full-{uid}", os.F_OK):
            raise OSError(errno.EDQUOT, "full")

    def give(self, path: str) -> int:
        """Make the caller the owner of what was just made."""
        uid, gid, _ = mfusepy.fuse_get_context()
        os.chown(path, uid, gid, follow_symlinks=False)
        return 0

    def getattr(self, path: str, buffer: Any) -> int:
        return call(libc.lstat, os.fsencode(self.real(path)), buffer)

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def readdir(self, path: str, _handle: int) -> Iterator[tuple[str, dict[str, int], int]]:
        yield ".", {"st_mode": stat.S_IFDIR}, 0
        yield "..", {"st_mode": stat.S_IFDIR}, 0
        with os.scandir(self.real(path)) as entries:
            for entry in entries:
                is_link, is_folder = entry.is_symlink(), entry.is_dir(follow_symlinks=False)
                kind = stat.S_IFLNK if is_link else stat.S_IFDIR if is_folder else 0
                if not kind and entry.is_file(follow_symlinks=False):
                    kind = stat.S_IFREG
                yield entry.name, {"st_mode": kind, "st_ino": entry.inode()}, 0

    def readlink(self, path: str) -> str:
        return os.readlink(self.real(path))

    def open(self, path: str, handle: Any) -> int:
        if handle.flags & os.O_ACCMODE != os.O_RDONLY:
            self.refuse(takes_space=False)
        handle.fh = os.open(self.real(path), handle.flags & ~NOT_OURS)
        return 0

    def create(self, path: str, mode: int, handle: Any) -> int:
        self.refuse(takes_space=True)
        handle.fh = os.open(self.real(path), (handle.flags | os.O_CREAT) & ~NOT_OURS, mode)
        return self.give(self.real(path))

    def read(self, _path: str, size: int, offset: int, handle: Any) -> bytes:
        return os.pread(handle.fh, size, offset)

    def write(self, _path: str, data: bytes, offset: int, handle: Any) -> int:
        self.refuse(takes_space=True)
        return os.pwrite(handle.fh, data, offset)

    def fallocate(self, _path: str, mode: int, offset: int, size: int, handle: Any) -> int:
        self.refuse(takes_space=True)
        off_t = ctypes.c_int64
        return call(libc.fallocate, ctypes.c_int(handle.fh), mode, off_t(offset), off_t(size))

    def fsync(self, _path: str, _only_data: int, handle: Any) -> int:
        time.sleep(self.fsync_seconds)
        os.fsync(handle.fh)
        return 0

    def fsyncdir(self, _path: str, _only_data: int, _handle: int) -> int:
        time.sleep(self.fsync_seconds)
        return 0

    def release(self, _path: str, handle: Any) -> int:
        os.close(handle.fh)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self.refuse(takes_space=True)
        os.mkdir(self.real(path), mode)
        return self.give(self.real(path))

    def mknod(self, path: str, mode: int, device: int) -> int:
        self.refuse(takes_space=True)
        os.mknod(self.real(path), mode, device)
        return self.give(self.real(path))

    def symlink(self, path: str, target: str) -> int:
        self.refuse(takes_space=True)
        os.symlink(target, self.real(path))
        return self.give(self.real(path))

    def link(self, path: str, existing: str) -> int:
        self.refuse(takes_space=False)
        os.link(self.real(existing), self.real(path), follow_symlinks=False)
        return 0

    def unlink(self, path: str) -> int:
        self.refuse(takes_space=False)
        os.unlink(self.real(path))
        return 0

    def rmdir(self, path: str) -> int:
        self.refuse(takes_space=False)
        os.rmdir(self.real(path))
        return 0

    def rename(self, old: str, new: str, flags: int) -> int:
        self.refuse(takes_space=False)
        source, target = (os.fsencode(self.real(path)) for path in (old, new))
        return call(libc.renameat2, AT_FDCWD, source, AT_FDCWD, target, ctypes.c_uint(flags))

    def chown(self, path: str, uid: int, gid: int) -> int:
        now = os.lstat(self.real(path))
        if uid not in {-1, now.st_uid} or gid not in {-1, now.st_gid}:
            raise OSError(errno.EPERM, "ids are the server's to give")
        self.refuse(takes_space=False)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        self.refuse(takes_space=False)
        os.chmod(self.real(path), stat.S_IMODE(mode))
        return 0

    def truncate(self, path: str, length: int) -> int:
        self.refuse(takes_space=False)
        os.truncate(self.real(path), length)
        return 0

    def utimens(self, path: str, times: Any) -> int:
        self.refuse(takes_space=False)
        return call(libc.utimensat, AT_FDCWD, os.fsencode(self.real(path)), times, AT_SYMLINK_NOFOLLOW)


class WithoutLocks(Home):
    """A home in which no file can be locked."""

    def flock(self, _path: str, _handle: Any, _operation: int) -> int:
        raise OSError(errno.ENOSYS, "no locks")

    def lock(self, _path: str, _handle: Any, _command: int, _lock: Any) -> int:
        raise OSError(errno.ENOSYS, "no locks")


class SharedLocks(Home):
    """A home whose locks bind all hosts: the export's own."""

    def flock(self, _path: str, handle: Any, operation: int) -> int:
        fcntl.flock(handle.fh, operation)
        return 0

    def lock(self, _path: str, handle: Any, command: int, lock: Any) -> int:
        lock.contents.l_pid = 0
        answer = fcntl.fcntl(handle.fh, OFD[command], bytes(lock.contents))
        ctypes.memmove(lock, answer, len(answer))
        return 0


HOMES = {"none": WithoutLocks, "host": Home, "all": SharedLocks}  # by whom a lock binds


class Server(mfusepy.FUSE):  # type: ignore[misc]
    """mfusepy, which of itself forgets a rename's flags and times that are "now" or to be left."""

    def getattr_fuse_3(self, path: bytes, buffer: Any, _handle: Any) -> int:
        return self.operations.getattr(os.fsdecode(path), buffer)  # type: ignore[no-any-return]

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return self.operations.rename(os.fsdecode(old), os.fsdecode(new), flags)  # type: ignore[no-any-return]

    def utimens_fuse_3(self, path: bytes, times: Any, _handle: Any) -> int:
        return self.operations.utimens(os.fsdecode(path), times)  # type: ignore[no-any-return]


def main() -> None:
    """Serve until unmounted."""
    parser = argparse.ArgumentParser(prog="sharedfs")
    parser.add_argument("--fsync", type=float, default=0.01, metavar="SECONDS", help="what an fsync takes")
    parser.add_argument("--locks", choices=HOMES, default="none", help="whom a lock binds; default: none")
    parser.add_argument("export")
    parser.add_argument("mountpoint")
    args = parser.parse_args()
    if not os.path.isdir(args.export):
        sys.exit(f"sharedfs: cannot use {args.export}: no directory")
    os.umask(0)
    libc.umount2(os.fsencode(args.mountpoint), MNT_DETACH)  # what a server that died has left
    Server(
        HOMES[args.locks](args.export, fsync_seconds=args.fsync),
        args.mountpoint,
        raw_fi=True,
        foreground=True,
        fsname="shared:/home",
        subtype="sharedfs",
        allow_other=True,
        default_permissions=True,
        nosuid=True,
        nodev=True,
        use_ino=True,
        kernel_cache=True,  # the kernel drops it when size or time change
        entry_timeout=CACHED_SECONDS,
        attr_timeout=CACHED_SECONDS,
        negative_timeout=CACHED_SECONDS,
    )


if __name__ == "__main__":
    main()
