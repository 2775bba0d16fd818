"""Memory limits of containers: kept by the agent where Slurm has no cgroup for each, and told apart where one has.

Slurm's own enforcement takes the whole job, agent included, and knows the sum of all containers only.  So each
container with a limit is looked at a few times a second, and killed alone when its own memory (anonymous and
shared, not the page cache, which a kernel would reclaim) is over its limit.  Where the job has a memory cgroup the
kernel may be faster; its count of kills then says what the SIGKILL was.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PERIOD_SECONDS = 0.25
_OWN = ("RssAnon:", "RssShmem:", "VmSwap:")


async def watch(process: int, *, limit_bytes: int, on_exceeded: Callable[[], None]) -> None:
    """Look at a container, by its first process, until it is over its limit."""
    while usage_bytes(process) <= limit_bytes:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(PERIOD_SECONDS)
    on_exceeded()


def usage_bytes(process: int, *, proc: str = "/proc") -> int:
    """The memory of all processes in the pid namespace of this one; 0 when it is gone."""
    try:
        namespace = os.readlink(f"{proc}/{process}/ns/pid")
    except OSError:
        return 0
    return sum(_own_bytes(f"{proc}/{name}", namespace) for name in os.listdir(proc) if name.isdecimal())


def kernel_kills() -> int:
    """How many processes of this job's cgroup the kernel has killed for want of memory; 0 where nobody counts."""
    with contextlib.suppress(OSError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            paths = [line.rstrip("\n").split(":", 2) for line in file]
        for _, controllers, path in paths:
            if controllers == "":
                return _counted(f"/sys/fs/cgroup{path}/memory.events")
            if "memory" in controllers.split(","):
                return _counted(f"/sys/fs/cgroup/memory{path}/memory.oom_control")
    return 0


def _own_bytes(directory: str, namespace: str) -> int:
    """Zero for a process of another container, and for one that has just ended."""
    try:
        if os.readlink(f"{directory}/ns/pid") != namespace:
            return 0
        with open(f"{directory}/status", encoding="utf-8", errors="replace") as file:
            return sum(int(line.split()[1]) * 1024 for line in file if line.startswith(_OWN))
    except OSError:
        return 0


def _counted(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
