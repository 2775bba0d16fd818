"""The memory cgroup that this process is in, which Slurm made for its job: what the kernel charges, and whom it killed.

Slurm's layouts (cgroup.conf(5), cgroup_v2): v1 ``/slurm_<node>/uid_<uid>/job_<id>/step_batch/task_0`` below the
memory controller's mount; v2 ``/system.slice/slurmstepd.scope/job_<id>/step_batch/user/task_0``.  All processes of a
pod are in one of these, so it knows the sum of the containers, not each.
"""

from __future__ import annotations

import os

MOUNTED = "/sys/fs/cgroup"


class MemoryCgroup:
    """A directory of the cgroup file system, and whether it is of version 1."""

    def __init__(self, directory: str, *, is_v1: bool) -> None:
        self.directory = directory
        self.is_v1 = is_v1

    def working_set_bytes(self) -> int | None:
        """What is charged, without the page cache that the kernel would reclaim first; None if it cannot be read.

        The kubelet's working set (cadvisor, ``container/libcontainer/handler.go``), and what of it is swapped out.
        """
        usage, cache = ("usage_in_bytes", "total_inactive_file") if self.is_v1 else ("current", "inactive_file")
        try:
            charged = int(_read(f"{self.directory}/memory.{usage}"))
            values = _values(f"{self.directory}/memory.stat")
            return max(0, charged - values.get(cache, 0)) + self._swapped_bytes(values)
        except (OSError, ValueError):
            return None

    def _swapped_bytes(self, values: dict[str, int]) -> int:
        if self.is_v1:
            return values.get("total_swap", 0)
        try:
            return int(_read(f"{self.directory}/memory.swap.current"))
        except FileNotFoundError:
            return 0  # a kernel without swap

    def kills(self) -> int:
        """How many processes in it the kernel has killed for want of memory; 0 where it does not say."""
        name = "oom_control" if self.is_v1 else "events"
        try:
            return _values(f"{self.directory}/memory.{name}").get("oom_kill", 0)
        except (OSError, ValueError):
            return 0


def own(*, root: str = "/", covered: int | None = None) -> MemoryCgroup | None:
    """The memory cgroup of this process, or the nearest one above that counts; None where none is in sight.

    Args:
        covered: A descriptor of :data:`MOUNTED` as it was before something was mounted there.
        root: In whose /proc and /sys to look; for tests.
    """
    try:
        paths = _own_paths(_read(os.path.join(root, "proc/self/cgroup")))
        mounts = _mounts(_read(os.path.join(root, "proc/self/mountinfo")))
    except (OSError, ValueError, IndexError):
        return None
    is_v1 = "memory" in paths
    path, mount = paths.get("memory" if is_v1 else ""), mounts.get("memory" if is_v1 else "")
    if path is None or mount is None:
        return None
    mounted_root, mount_point = mount
    inside = path.removeprefix(mounted_root.rstrip("/")).strip("/")
    if not path.startswith(mounted_root):  # what is mounted is not where we are
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
    """Controller → path; version 2 as the controller without a name."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    return paths


def _mounts(text: str) -> dict[str, tuple[str, str]]:
    """Controller → root within the hierarchy and mount point (proc_pid_mountinfo(5)); version 2 without a name.

    Of several the one at the usual place: a pod that sees its node's files sees them there, too.
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
    """The numbers of a file that has a name and a number in each line."""
    pairs = (line.split() for line in _read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}  # noqa: PLR2004 - a pair


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
