"""Enforces containers' memory limits where no cgroup per container is possible; detects the kernel's kills.

Slurm's own enforcement ends the whole job, agent included, and knows only the sum of all containers. So the agent kills
a container that exceeds its limit. Its usage is what the kernel would charge to its own cgroup without swap: anonymous
and shared memory, each page once however many processes map it, and its files in tmpfs; not the page cache. It is
measured in steps, each only if the one before leaves a doubt:

1. The job's cgroup: if the whole pod is charged less than the limit, so is the container.
2. The resident sizes of its processes, which count shared pages once for each, and mapped files.
3. The same without mapped files.
4. Their proportional set sizes: exact, but the kernel walks their page tables for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

from hpk.agent.life import supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hpk.agent.boot import cgroup

PERIOD_SECONDS = 0.25
LEAST_REST = 20
"""Pause between measurements, as a multiple of the last one's duration: large page tables must not keep it busy."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE = (0, 0, 0)
_OWN = ("RssAnon:", "RssShmem:", "VmSwap:")
_EXACT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


class Watched:
    """A container with a limit.

    Attributes:
        process: Its first process.
        tmpfs: The tmpfs mounts that only it can write to.
        members: Process ids and their start times, which tell a reused id apart.
    """

    def __init__(
        self, process: int, limit_bytes: int, on_exceeded: Callable[[], None], tmpfs: tuple[str, ...] = ()
    ) -> None:
        self.process, self.limit_bytes, self.on_exceeded, self.tmpfs = process, limit_bytes, on_exceeded, tmpfs
        self.members: dict[int, int] = {}


class Watcher:
    """Watches all containers of the pod that have a limit, while there are any."""

    def __init__(self, *, job: cgroup.MemoryCgroup | None = None, proc: str = "/proc") -> None:
        self._job = job
        self._meter = MemoryMeter(proc)
        self._watched: list[Watched] = []
        self._task: asyncio.Task[None] | None = None
        self.kills = Kills(job.kills if job else lambda: 0)

    @contextlib.contextmanager
    def watching(self, one: Watched) -> Iterator[None]:
        """Watch a container within the context; ``on_exceeded`` is called in the event loop."""
        self._watched.append(one)
        if self._task is None:
            self._task = asyncio.create_task(supervise.restarted(self._watch, name="watch over memory"), name="memory")
        try:
            yield
        finally:
            if one in self._watched:
                self._watched.remove(one)
            if not self._watched and self._task:
                self._task.cancel()
                self._task = None

    async def _watch(self) -> None:
        while True:
            began_at = time.monotonic()
            for one in await asyncio.to_thread(self._exceeded, tuple(self._watched)):
                if one in self._watched:
                    self._watched.remove(one)
                    one.on_exceeded()
            await asyncio.sleep(max(PERIOD_SECONDS, LEAST_REST * (time.monotonic() - began_at)))

    def _exceeded(self, watched: tuple[Watched, ...]) -> list[Watched]:
        """Return those over their limits; called in a thread, because page tables may be locked for long."""
        charged = self._job.working_set_bytes() if self._job else None
        if charged is not None:
            watched = tuple(one for one in watched if charged > one.limit_bytes)
        return self._meter.exceeded(watched) if watched else []


class MemoryMeter:
    """Measures containers by their processes."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc

    def exceeded(self, watched: Sequence[Watched]) -> list[Watched]:
        """Return the containers over their limits."""
        resident = self._assign(watched)
        return [one for one in watched if self._is_over(one, sum(resident[process] for process in one.members))]

    def _is_over(self, one: Watched, resident: int) -> bool:
        files = sum(map(_tmpfs_bytes, one.tmpfs))
        if resident + files <= one.limit_bytes and not self._swaps():
            return False
        cheap = {process: self._own_bytes(process) for process in one.members}
        if sum(cheap.values()) + files <= one.limit_bytes:
            return False
        return self._exact_bytes(cheap, files) > one.limit_bytes

    def _assign(self, watched: Sequence[Watched]) -> dict[int, int]:
        """Find the processes of each container; return the resident size of every process.

        A process belongs to the container whose mount namespace it is in; one that made itself another, to its
        parent's.
        """
        found = {int(name): self._stat(name) for name in os.listdir(self._proc) if name.isdecimal()}
        owners: dict[int, Watched] = {}
        for one in watched:
            one.members = {process: at for process, at in one.members.items() if found.get(process, _GONE)[1] == at}
            owners.update(dict.fromkeys(one.members, one))
        marks = {mark: one for one in watched if (mark := self._mounts(one.process))}
        for process in found.keys() - owners.keys():
            if owner := marks.get(self._mounts(process)):
                owners[process] = owner
        left = {process: parent for process, (parent, at, _) in found.items() if at and process not in owners}
        while children := {process: owners[parent] for process, parent in left.items() if parent in owners}:
            owners.update(children)
            left = {process: parent for process, parent in left.items() if process not in children}
        for process, one in owners.items():
            one.members[process] = found[process][1]
        return {process: resident for process, (_, _, resident) in found.items()}

    def _stat(self, process: str) -> tuple[int, int, int]:
        """Return a process's parent, start time and resident size; zeros if it has ended."""
        try:
            with open(f"{self._proc}/{process}/stat", "rb", buffering=0) as file:
                fields = file.read().rpartition(b")")[2].split()  # the name may contain anything
            return int(fields[1]), int(fields[19]), int(fields[21]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return _GONE

    def _mounts(self, process: int) -> str:
        try:
            return os.readlink(f"{self._proc}/{process}/ns/mnt")
        except OSError:
            return ""

    def _swaps(self) -> bool:
        """Return whether the node has swap space, so that resident sizes are too small."""
        return len(_lines(f"{self._proc}/swaps")) > 1

    def _own_bytes(self, process: int) -> int:
        return sum(_kilobytes(f"{self._proc}/{process}/status", _OWN).values())

    def _exact_bytes(self, cheap: dict[int, int], files: int) -> int:
        """Return the processes' proportional sizes, plus tmpfs files that nobody maps."""
        private, shared = 0, 0
        for process, bytes_ in cheap.items():
            sizes = _kilobytes(f"{self._proc}/{process}/smaps_rollup", _EXACT) if bytes_ else {}
            if len(sizes) == len(_EXACT):
                shared += sizes["Pss_Shmem:"]
                private += sizes["Pss_Anon:"] + sizes["SwapPss:"]
            else:
                private += bytes_  # it has just ended, or the kernel is older than 5.4
        return private + max(shared, files)


class Kills:
    """Tells whether the kernel has just killed for lack of memory, from a count that only rises.

    The count rises first; the process is gone once its pages are free: 0.2 s for each GB of small pages.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self.count = count
        self._settled = self._newest = 0

    def look(self) -> None:
        """Note the count; what the last look saw is then no longer recent. Call it once a minute."""
        self._settled, self._newest = self._newest, self.count()

    def rose(self, *, since: int) -> bool:
        """Return whether the count has risen recently, and since the run began (``since``)."""
        return self.count() > max(since, self._settled)


def _kilobytes(path: str, names: tuple[str, ...]) -> dict[str, int]:
    """Return the sizes with these names in a file of /proc, in bytes."""
    pairs = (line.split() for line in _lines(path) if line.startswith(names))
    return {pair[0]: int(pair[1]) * 1024 for pair in pairs}


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _tmpfs_bytes(path: str) -> int:
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return (found.f_blocks - found.f_bfree) * found.f_frsize
