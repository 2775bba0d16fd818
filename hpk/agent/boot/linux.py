"""System calls that Python lacks, or has only in slow modules: mounts, namespaces, host name, limits.

Except for :func:`raise_limits`, they raise OSError with what was tried if the kernel or the site does not allow it.
"""

from __future__ import annotations

import ctypes
import os

READ_ONLY = 0x1
NO_SUID = 0x2
NO_DEVICES = 0x4
NO_EXECUTE = 0x8
RECURSIVE = 0x4000
PRIVATE = 0x40000

NEW_MOUNTS = 0x20000
NEW_HOSTNAME = 0x4000000
NEW_IPC = 0x8000000
NEW_USERS = 0x10000000
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000

_DETACH = 0x2
_PR_SET_CHILD_SUBREAPER = 36

_RLIMIT_FILES = 7
_LIMITS = (0, 1, 2, 5, 6, _RLIMIT_FILES, 8, 9, 11, 12)
"""CPU, FSIZE, DATA, RSS, NPROC, NOFILE, MEMLOCK, AS, SIGPENDING, MSGQUEUE (asm-generic/resource.h)."""
_MOST_FILES = 1 << 20
"""containerd's old default: some programs close every descriptor up to the limit before they start."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Cannot {what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, *, flags: int = 0, options: str = "") -> None:
    """Mount a file system."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options)
    )
    _check(result, f"mount {kind} {source} at {target} ({options})")


def unmount(target: str) -> None:
    """Detach the file system from the tree at once; it ends when its last user has gone."""
    _check(_libc.umount2(os.fsencode(target), _DETACH), f"unmount {target}")


def enter_root() -> None:
    """Make the working directory, a mount point, the root of this mount namespace, and drop the old root."""
    # Stacked, as in pivot_root(2), so that the old root needs no directory.
    _check(_libc.pivot_root(b".", b"."), "change the root")
    unmount(".")
    os.chdir("/")


def unshare(flags: int) -> None:
    """Move this process, which must have only one thread, into new namespaces."""
    _check(_libc.unshare(flags), "make namespaces")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace, which must not be the host's."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), f"set host name {name}")


def adopt_orphans() -> None:
    """Become the parent of all orphaned descendants, to learn how each one ended."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "become the reaper of orphans")


def raise_limits() -> None:
    """Raise this process's soft limits to the hard ones; Slurm passes on those of the shell that submitted the job.

    A login shell's soft limit of 1,024 files is meant for select(2); containerd gives containers what is allowed. Stack
    and core keep their soft limits: they set the size of a thread's stack, and nobody asked for core files.
    """
    limits = (ctypes.c_ulong * 2)()
    for kind in _LIMITS:
        if _libc.getrlimit(kind, limits) != 0:
            continue
        soft, hard = limits
        wanted = max(soft, min(hard, _MOST_FILES)) if kind == _RLIMIT_FILES else hard
        if wanted != soft:
            limits[0] = wanted
            _libc.setrlimit(kind, limits)  # allowed, because the hard limit stays
