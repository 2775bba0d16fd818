"""The job's memory cgroup, made by Slurm: its usage, and how many of its processes the kernel has killed.

Slurm's layouts (cgroup.conf(5), cgroup_v2): v1 ``/slurm_<node>/uid_<uid>/job_<id>/step_batch/task_0`` below the memory
controller's mount; v2 ``/system.slice/slurmstepd.scope/job_<id>/step_batch/user/task_0``. All processes of a pod are in
one of these, so its usage is the sum of all containers.
"""

from __future__ import annotations

import os

MOUNTED = "/sys/fs/cgroup"


class MemoryCgroup:
    """A directory of the cgroup file system, version 1 or 2."""

    def __init__(self, directory: str, *, is_v1: bool) -> None:
        self.directory = directory
        self.is_v1 = is_v1

    def working_set_bytes(self) -> int | None:
        """Return the usage without the page cache that the kernel reclaims first; None if it cannot be read.

        This is the kubelet's working set (cadvisor, ``container/libcontainer/handler.go``) plus what is swapped out.
        """
        usage, cache = ("usage_in_bytes", "total_inactive_file") if self.is_v1 else ("current", "inactive_file")
        try:
            charged = int(read(f"{self.directory}/memory.{usage}"))
            values = _values(f"{self.directory}/memory.stat")
            return max(0, charged - values.get(cache, 0)) + self._swapped_bytes(values)
        except (OSError, ValueError):
            return None

    def _swapped_bytes(self, values: dict[str, int]) -> int:
        if self.is_v1:
            return values.get("total_swap", 0)
        try:
            return int(read(f"{self.directory}/memory.swap.current"))
        except FileNotFoundError:
            return 0  # a kernel without swap

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for lack of memory; 0 if unknown."""
        name = "oom_control" if self.is_v1 else "events"
        try:
            return _values(f"{self.directory}/memory.{name}").get("oom_kill", 0)
        except (OSError, ValueError):
            return 0


def own(*, root: str = "/", covered: int | None = None) -> MemoryCgroup | None:
    """Return this process's memory cgroup, or the nearest ancestor with counters; None if none is visible.

    Args:
        root: The parent of the /proc and /sys to read, for tests.
        covered: A descriptor of :data:`MOUNTED`, opened before something was mounted over it.
    """
    try:
        paths = _own_paths(read(os.path.join(root, "proc/self/cgroup")))
        mounts = _mounts(read(os.path.join(root, "proc/self/mountinfo")))
    except (OSError, ValueError, IndexError):
        return None
    is_v1 = "memory" in paths
    path, mount = paths.get("memory" if is_v1 else ""), mounts.get("memory" if is_v1 else "")
    if path is None or mount is None:
        return None
    mounted_root, mount_point = mount
    inside = path.removeprefix(mounted_root.rstrip("/")).strip("/")
    if not path.startswith(mounted_root):  # the mount shows another part of the hierarchy
        return None
    if covered is not None and _is_usual(mount_point):
        mount_point = f"/proc/self/fd/{covered}" + mount_point.removeprefix(MOUNTED)
    top = os.path.join(root, mount_point.lstrip("/"))
    marker = "memory.usage_in_bytes" if is_v1 else "memory.current"
    directory = os.path.join(top, inside) if inside else top
    while directory.startswith(top):
        if os.path.exists(os.path.join(directory, marker)):
            return MemoryCgroup(directory, is_v1=is_v1)
        directory = os.path.dirname(directory)
    return None


def _own_paths(text: str) -> dict[str, str]:
    """Return controller → path; the name of version 2 is empty."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Return controller → (root within the hierarchy, mount point); the name of version 2 is empty.

    See proc_pid_mountinfo(5). The usual mount point wins: a pod that sees its node's files sees their mounts, too.
    """
    mounts: dict[str, tuple[str, str]] = {}
    for line in text.splitlines():
        fields = line.split(" ")
        kind, _, options = fields[fields.index("-") + 1 :][:3]
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in names:
            if name not in mounts or _is_usual(fields[4]):
                mounts[name] = fields[3], fields[4]
    return mounts


def _is_usual(mount_point: str) -> bool:
    return mount_point == MOUNTED or mount_point.startswith(MOUNTED + "/")


def _values(path: str) -> dict[str, int]:
    """Return the numbers of a file with a name and a number on each line."""
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}  # noqa: PLR2004 - a pair


def read(path: str) -> str:
    """Return a file's text; what is not UTF-8 becomes surrogates."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
