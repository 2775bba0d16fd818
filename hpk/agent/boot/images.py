"""Mounts image files, and makes a writable layer over them for each run of a container.

Each image of the pod is mounted once, by squashfuse: the kernel lets only root mount squashfs, and would show the
host's user ids. The layer is an overlay whose upper directory is on scratch: the kernel's overlayfs if it works in a
user namespace (Linux 5.11), else fuse-overlayfs.
"""

from __future__ import annotations

import os

from hpk.agent.boot import linux, processes

SQUASHFUSE = "/usr/bin/squashfuse_ll"
FUSE_OVERLAY = "/usr/bin/fuse-overlayfs"


class Images:
    """The mounted images of one pod, below a directory on scratch."""

    def __init__(self, directory: str, *, source: str) -> None:
        self._directory = directory
        self._source = source
        self._processes: dict[tuple[str, int], int] = {}
        self._statuses: dict[tuple[str, int], int] = {}
        self._mounted: dict[tuple[str, int], str] = {}

    def start(self, file: str, *, offset: int) -> None:
        """Start mounting an image, unless it was started before."""
        key = (file, offset)
        if key in self._mounted:
            return
        target = os.path.join(self._directory, str(len(self._mounted)))
        os.makedirs(target, mode=0o755, exist_ok=True)  # an attempt may have failed after this
        options = "allow_other,ro,nosuid,nodev" + (f",offset={offset}" if offset else "")
        argv = [SQUASHFUSE, "-o", options, os.path.join(self._source, file), target]
        self._processes[key] = processes.spawn(argv, blocked_signals=processes.STEADFAST)
        self._mounted[key] = target

    def started(self, file: str, *, offset: int) -> int:
        """Return the process that is mounting an image, or 0; tell :meth:`settled` how it ended."""
        return self._processes.get((file, offset), 0)

    def settled(self, file: str, *, offset: int, status: int) -> None:
        """Record how the process that mounts an image ended, as collected by the event loop's reaper."""
        self._processes.pop((file, offset), None)
        self._statuses.setdefault((file, offset), status)

    def ready(self, file: str, *, offset: int) -> str:
        """Return the directory of an image that was started; wait the few milliseconds until it is mounted.

        Raises:
            OSError: The file is not squashfs, or FUSE is missing; squashfuse's message is in the job's output.
        """
        key = (file, offset)
        if (status := self._status(key)) != 0:
            raise OSError(f"Cannot mount image {file}: squashfuse ended with {processes.exit_code(status)}")
        return self._mounted[key]

    def settle(self) -> None:
        """Wait for all that were started, before the event loop's reaper would collect their ends."""
        for key in self._mounted:
            self._status(key)

    def close(self) -> None:
        """Unmount everything."""
        for key, target in self._mounted.items():
            if self._status(key) == 0:
                unmount_quietly(target)

    def _status(self, key: tuple[str, int]) -> int:
        if key not in self._statuses:
            self._statuses[key] = processes.wait(self._processes.pop(key))
        return self._statuses[key]


def make_writable(lower: str, directory: str) -> str:
    """Make a writable root file system in ``directory`` over ``lower``; return its path.

    Raises:
        OSError: No kind of overlay works here.
    """
    upper, work, merged = (os.path.join(directory, name) for name in ("upper", "work", "root"))
    for path in (directory, upper, work, merged):
        os.mkdir(path, 0o755)
    image_root = os.stat(lower)
    os.chown(upper, image_root.st_uid, image_root.st_gid)
    os.chmod(upper, image_root.st_mode & 0o7777)
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    if _has_attributes(work):
        try:
            linux.mount("overlay", merged, "overlay", options=options + ",userxattr")
        except OSError as error:
            print(f"{error}; falling back to fuse-overlayfs", flush=True)  # noqa: T201 - the job's output is the log
        else:
            return merged
    argv = [FUSE_OVERLAY, "-o", options, merged]
    status = processes.wait(processes.spawn(argv, blocked_signals=processes.STEADFAST))
    if status != 0:
        raise OSError(f"Cannot make a writable layer in {directory}: fuse-overlayfs: {processes.exit_code(status)}")
    return merged


def unmount_quietly(target: str) -> None:
    """Unmount; print an error, such as that nothing is mounted."""
    try:
        linux.unmount(target)
    except OSError as error:
        print(error, flush=True)  # noqa: T201 - the job's output is the log


def _has_attributes(directory: str) -> bool:
    """Return whether overlayfs can mark replaced directories there (not on tmpfs before Linux 6.6)."""
    try:
        os.setxattr(directory, "user.hpk", b"")
    except OSError:
        return False
    os.removexattr(directory, "user.hpk")
    return True
