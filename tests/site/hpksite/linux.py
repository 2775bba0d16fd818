"""The few system calls that Python 3.11 does not offer: setns, unshare, mount, pivot_root."""

import ctypes
import os
import pathlib
import stat

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def enter_netns(path: str) -> None:
    """Move this process into the network namespace that is mounted at `path`."""
    with pathlib.Path(path).open("rb") as file:
        _check(_libc.setns(file.fileno(), CLONE_NEWNET), f"enter {path}")


def unshare(flags: int) -> None:
    """Give this process (with CLONE_NEWPID: its children) new namespaces."""
    _check(_libc.unshare(flags), "make namespaces")


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, data: str = "") -> None:
    """Mount, or change the mount at `target`, in this process's mount namespace."""
    arguments = [text.encode() or None for text in (source, target, kind)]
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data.encode() or None), f"mount {source} on {target}")


def pivot_root(new: str) -> None:
    """Make the mount `new` this namespace's root and drop the old one.

    Not chroot: programs that read mountinfo (Apptainer) must find a root there.
    """
    os.chdir(new)
    here = ctypes.c_char_p(b".")
    _check(_libc.syscall(ctypes.c_long(SYS_PIVOT_ROOT[os.uname().machine]), here, here), f"pivot_root to {new}")
    _check(_libc.umount2(b".", MNT_DETACH), "drop the old root")
    os.chdir("/")


def make_device(path: str, kind: str, major: int, minor: int, *, mode: int) -> None:
    """Make a device node (kind b or c) with exactly this mode, whatever the umask."""
    os.mknod(path, mode | (stat.S_IFBLK if kind == "b" else stat.S_IFCHR), os.makedev(major, minor))
    pathlib.Path(path).chmod(mode)


def set_hostname(name: str) -> None:
    """Name this process's UTS namespace."""
    encoded = name.encode()
    _check(_libc.sethostname(encoded, len(encoded)), "set the host name")


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"cannot {what}: {os.strerror(code)}")
