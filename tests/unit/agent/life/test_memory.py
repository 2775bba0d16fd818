"""What a container holds of the memory, and who is judged by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from hpk.agent.boot import cgroup
from hpk.agent.life import memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MIB = 1 << 20


class Proc:
    """A /proc of our own; sizes are MiB."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.exact = 0

    def add(
        self, process: int, *, mounts: str, parent: int = 1, file: int = 0, own: int = 0, pss: int | None = None
    ) -> None:
        """A process: what it maps of files, of its own memory, and its share of that."""
        directory = self.root / str(process)
        (directory / "ns").mkdir(parents=True)
        (directory / "ns/mnt").symlink_to(mounts)
        pages = (file + own) * MIB // os.sysconf("SC_PAGE_SIZE")
        (directory / "stat").write_text(f"{process} (a) b) S {parent} {'0 ' * 17}{process} 0 {pages} 0\n")
        (directory / "status").write_text(f"RssAnon:\t{own * 1024} kB\nRssFile:\t{file * 1024} kB\nRssShmem:\t0 kB\n")
        if pss is not None:
            rollup = f"Rss: 1 kB\nPss_Anon:  {pss * 1024} kB\nPss_Shmem:  0 kB\nSwapPss:  0 kB\n"
            (directory / "smaps_rollup").write_text(rollup)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """An empty /proc."""
    (tmp_path / "swaps").write_text("Filename\tType\tSize\tUsed\tPriority\n")
    return Proc(tmp_path)


def watched(process: int, limit: int, *tmpfs: str) -> memory.Watched:
    """A container with a limit in MiB."""
    return memory.Watched(process, limit * MIB, lambda: None, tmpfs=tmpfs)


def over(proc: Proc, *containers: memory.Watched) -> list[int]:
    """Whose limit is exceeded, by their first processes."""
    return [one.process for one in memory.MemoryMeter(str(proc.root)).exceeded(containers)]


def test_pages_that_forked_processes_share_count_once(proc: Proc) -> None:
    """A parent of 200 MiB with eight children that share it holds 200 MiB, not 1,800."""
    proc.add(10, mounts="mnt:[1]", own=200, pss=24)
    for child in range(11, 19):
        proc.add(child, mounts="mnt:[1]", parent=10, own=200, pss=23)
    assert over(proc, watched(10, 300)) == []
    assert over(proc, watched(10, 200)) == [10]


def test_mapped_files_are_not_a_container_s_memory(proc: Proc) -> None:
    """They are page cache, which the kernel would reclaim; to know it no page table is walked."""
    proc.add(10, mounts="mnt:[1]", file=900, own=50)
    assert over(proc, watched(10, 100)) == []


def test_what_cannot_be_read_exactly_is_counted_as_it_can(proc: Proc) -> None:
    """A kernel without smaps_rollup."""
    proc.add(10, mounts="mnt:[1]", own=150)
    assert over(proc, watched(10, 100)) == [10]


def test_a_process_is_its_container_s_wherever_it_moves(proc: Proc) -> None:
    """By its mount namespace, as commands of kubectl exec are; one that made another one, by its parent."""
    proc.add(10, mounts="mnt:[1]", own=10, pss=10)
    proc.add(11, mounts="mnt:[9]", parent=10, own=30, pss=30)
    proc.add(12, mounts="mnt:[9]", parent=11, own=30, pss=30)
    proc.add(13, mounts="mnt:[1]", parent=2, own=30, pss=30)
    proc.add(20, mounts="mnt:[2]", own=95, pss=95)
    proc.add(2, mounts="mnt:[0]", own=500, pss=500)
    assert over(proc, watched(10, 99), watched(20, 99)) == [10]
    assert over(proc, watched(10, 100), watched(20, 94)) == [20]


def test_a_process_id_that_came_again_is_another_process(proc: Proc, tmp_path: Path) -> None:
    """What was a container's process may be another's a moment later; one that has ended holds nothing."""
    one, two = watched(10, 50), watched(20, 50)
    proc.add(10, mounts="mnt:[1]", own=1)
    proc.add(11, mounts="mnt:[1]", parent=10, own=1)
    proc.add(20, mounts="mnt:[2]", own=1)
    meter = memory.MemoryMeter(str(tmp_path))
    assert meter.exceeded([one, two]) == []
    (tmp_path / "11/stat").write_text(f"11 (x) S 20 {'0 ' * 17}77 0 {60 * MIB // os.sysconf('SC_PAGE_SIZE')} 0\n")
    (tmp_path / "11/status").write_text(f"RssAnon: {60 * 1024} kB\n")
    (tmp_path / "11/ns/mnt").unlink()
    (tmp_path / "11/ns/mnt").symlink_to("mnt:[2]")
    assert meter.exceeded([one, two]) == [two]
    assert meter.exceeded([watched(99, 50)]) == []


def test_files_in_memory_count_and_not_twice(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a container wrote into its /dev/shm is charged to it, mapped or not."""
    monkeypatch.setattr(memory, "_tmpfs_bytes", lambda _path: 60 * MIB)
    proc.add(10, mounts="mnt:[1]", own=50, pss=50)
    assert over(proc, watched(10, 100, "/shm")) == [10]
    rollup = f"Pss_Anon: {20 * 1024} kB\nPss_Shmem: {30 * 1024} kB\nSwapPss: 0 kB\n"
    (proc.root / "10/smaps_rollup").write_text(rollup)
    assert over(proc, watched(10, 100, "/shm")) == []


SHARING = """
import mmap, os, sys
pages = mmap.mmap(-1, 32 << 20)
pages.write(b"x" * len(pages))
children = []
for _ in range(3):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        pages.seek(0)
        pages.read()
        os.write(write, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(read, 1)
    children.append(child)
print(os.getpid(), *children, flush=True)
sys.stdin.read()
"""


def test_real_children_share_a_real_parent_s_pages() -> None:
    """Against this kernel: four processes over one mapping hold it once."""
    command = [sys.executable, "-c", SHARING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin
        assert parent.stdout
        family = [int(word) for word in parent.stdout.readline().split()]
        meter = memory.MemoryMeter()
        cheap = {process: meter._own_bytes(process) for process in family}
        exact = meter._exact_bytes(cheap, 0)
        parent.stdin.close()
    assert sum(cheap.values()) > 4 * 32 * MIB
    assert exact < sum(cheap.values()) - 2 * 32 * MIB


async def test_the_job_s_cgroup_spares_the_look_at_processes(
    tmp_path: Path, proc: Proc, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the whole job is charged less than a container's limit, so is the container."""
    looked: list[int] = []

    def exceeded(_self: memory.MemoryMeter, containers: tuple[memory.Watched, ...]) -> list[memory.Watched]:
        looked.extend(one.process for one in containers)
        return list(containers)

    monkeypatch.setattr(memory.MemoryMeter, "exceeded", exceeded)
    (tmp_path / "memory.current").write_text(f"{100 * MIB}\n")
    (tmp_path / "memory.stat").write_text("inactive_file 0\n")
    watcher = memory.Watcher(job=cgroup.MemoryCgroup(str(tmp_path), is_v1=False), proc=str(proc.root))
    told = asyncio.Event()
    small = memory.Watched(10, 50 * MIB, told.set)
    large = memory.Watched(20, 200 * MIB, lambda: pytest.fail("it holds less"))
    with watcher.watching(large), watcher.watching(small):
        async with asyncio.timeout(60):
            await told.wait()
    assert looked == [10]


@pytest.mark.virtual_time
async def test_a_watch_that_fails_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container over its limit is killed all the same, a moment later."""
    faults = [LookupError("of all things")]

    def exceeded(_self: memory.MemoryMeter, watched: Sequence[memory.Watched]) -> list[memory.Watched]:
        if faults:
            raise faults.pop()
        return list(watched)

    monkeypatch.setattr(memory.MemoryMeter, "exceeded", exceeded)
    told = asyncio.Event()
    with memory.Watcher(proc=str(tmp_path)).watching(memory.Watched(10, MIB, told.set)):
        async with asyncio.timeout(60):
            await told.wait()


def test_a_kill_is_news_for_a_minute_or_two() -> None:
    """A container that is killed an hour after the kernel killed another's process is not OOMKilled."""
    count = [0]
    kills = memory.Kills(lambda: count[0])
    kills.look()
    count[0] = 2
    assert kills.rose(since=0)
    assert not kills.rose(since=2)
    kills.look()
    assert kills.rose(since=0)
    kills.look()
    assert not kills.rose(since=0)
