"""A host's cgroups, of version 1: a folder in each of the machine's controllers, the root of all that the host sees.

The host's first process lives in those folders and has a cgroup namespace, so that its mounts and its
/proc/*/cgroup begin there, as on a machine of its own.
"""

import contextlib
import errno
import os
import pathlib
import time
from collections.abc import Iterator

from . import layout, linux, paths, sh

# What Slurm's plugin cgroup/v1 asks for.
CONTROLLERS = ("freezer", "memory", "devices", "cpuacct", "cpu", "cpuset", "pids")
MACHINE = pathlib.Path("/sys/fs/cgroup")
CPUSET = ("cpuset.cpus", "cpuset.mems")  # empty in a new folder, which then takes no process


def are_lent() -> bool:
    """Say whether this machine has the controllers, and lets folders be made in them."""
    return all(os.access(MACHINE / name / "cgroup.procs", os.W_OK) for name in CONTROLLERS)


def folders(host: layout.Host | None = None) -> list[pathlib.Path]:
    """Return the folders of a host, or of the whole cluster, one a controller; they may not be there."""
    return [MACHINE / name / paths.CGROUP / (host.name if host else "") for name in CONTROLLERS]


def make(host: layout.Host) -> None:
    """Make a host's folders anew. No process may be in the old ones."""
    remove(host)
    for folder in folders(host):
        for made in (folder.parent, folder):
            made.mkdir(exist_ok=True)
            for name in CPUSET if (made / CPUSET[0]).exists() else ():
                (made / name).write_text((made.parent / name).read_text())


def remove(host: layout.Host | None = None, *, seconds: float = 10) -> None:
    """Remove the folders of a host, or of the whole cluster, innermost first.

    A process that has just ended may keep its folder for a moment. A SiteError if it is still kept after `seconds`.
    """
    deadline = time.monotonic() + seconds
    for top in folders(host):
        for folder in _innermost_first(top):
            while not _is_removed(folder):
                if time.monotonic() > deadline:
                    raise sh.SiteError(f"cannot remove {folder}: processes are in it")
                time.sleep(0.02)


def enter(host: layout.Host) -> None:
    """Move this process into a host's folders and make them the root of what it and its children see."""
    for folder in folders(host):
        (folder / "cgroup.procs").write_text("0")
    linux.unshare(linux.CLONE_NEWCGROUP)


def mount(target: pathlib.Path) -> None:
    """Mount the controllers as this process sees them below `target`, a folder of sysfs."""
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("tmpfs", str(target), "tmpfs", flags=flags, data="mode=755")
    for name in CONTROLLERS:
        (target / name).mkdir()
        linux.mount("cgroup", str(target / name), "cgroup", flags=flags, data=name)


def _innermost_first(top: pathlib.Path) -> Iterator[pathlib.Path]:
    for folder, _, _ in os.walk(top, topdown=False):
        yield pathlib.Path(folder)


def _is_removed(folder: pathlib.Path) -> bool:
    try:
        with contextlib.suppress(FileNotFoundError):
            folder.rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True
