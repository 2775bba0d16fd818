"""The job's memory cgroup, in trees as Slurm and the kernel make them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hpk.agent.boot import cgroup, linux, sandbox

if TYPE_CHECKING:
    from pathlib import Path

V1_MOUNTS = """\
25 1 0:23 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 25 0:26 / /sys/fs/cgroup ro,nosuid,nodev,noexec shared:9 - tmpfs tmpfs ro,mode=755
33 30 0:29 / /sys/fs/cgroup/unified rw,nosuid,nodev,noexec shared:11 - cgroup2 cgroup2 rw
41 30 0:36 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid,nodev,noexec shared:19 - cgroup cgroup rw,cpu,cpuacct
43 30 0:38 / /sys/fs/cgroup/memory rw,nosuid,nodev,noexec shared:21 - cgroup cgroup rw,memory
"""
V1_GROUPS = """\
11:memory:/slurm_n1/uid_1001/job_42/step_batch/task_0
7:cpu,cpuacct:/slurm_n1/uid_1001/job_42/step_batch/task_0
1:name=systemd:/system.slice/slurmd.service
0::/system.slice/slurmd.service
"""
V2_MOUNTS = """\
24 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
29 24 0:25 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""
SLURM_V2 = "system.slice/slurmstepd.scope/job_42/step_batch/user/task_0"
V1_STAT = """\
cache 41943040
rss 104857600
mapped_file 8192
inactive_file 1048576
active_file 2097152
total_cache 41943040
total_rss 104857600
total_inactive_file 20971520
total_active_file 20971520
"""
V2_STAT = """\
anon 104857600
file 41943040
kernel 3145728
shmem 0
inactive_anon 104857600
active_anon 0
inactive_file 20971520
active_file 20971520
unevictable 0
slab_reclaimable 1048576
"""
V2_EVENTS = "low 0\nhigh 0\nmax 118\noom 2\noom_kill 2\noom_group_kill 0\n"


def tree(root: Path, files: dict[str, str]) -> str:
    """Files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def v2(directory: str, groups: str) -> dict[str, str]:
    """A machine with the unified hierarchy, whose kernel counts memory in this directory."""
    return {
        "proc/self/mountinfo": V2_MOUNTS,
        "proc/self/cgroup": f"0::/{groups}\n",
        f"sys/fs/cgroup/{directory}/memory.current": "146800640\n",
        f"sys/fs/cgroup/{directory}/memory.stat": V2_STAT,
        f"sys/fs/cgroup/{directory}/memory.events": V2_EVENTS,
    }


V1 = {
    "proc/self/mountinfo": V1_MOUNTS,
    "proc/self/cgroup": V1_GROUPS,
    "sys/fs/cgroup/memory/slurm_n1/uid_1001/job_42/step_batch/task_0/memory.usage_in_bytes": "146800640\n",
    "sys/fs/cgroup/memory/slurm_n1/uid_1001/job_42/step_batch/task_0/memory.stat": V1_STAT,
    "sys/fs/cgroup/memory/slurm_n1/uid_1001/job_42/step_batch/task_0/memory.oom_control": (
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    ),
}


@pytest.mark.parametrize(
    "files",
    [
        V1,
        v2(SLURM_V2, SLURM_V2),
        # A step whose tasks have no memory controller of their own is counted by the job's directory.
        v2("system.slice/slurmstepd.scope/job_42", SLURM_V2),
        v2("user.slice/user-1001.slice", "user.slice/user-1001.slice/session-3.scope"),
    ],
    ids=["v1", "v2", "v2-of-the-job", "user-slice"],
)
def test_the_job_s_memory_is_its_working_set(tmp_path: Path, files: dict[str, str]) -> None:
    """What is charged without the page cache that nobody uses; and how many processes the kernel has killed."""
    found = cgroup.own(root=tree(tmp_path, files))
    assert found is not None
    assert found.working_set_bytes() == 120 << 20
    assert found.kills() == 2


def test_what_is_swapped_out_is_held_all_the_same(tmp_path: Path) -> None:
    """A pod that the node swaps out is not below its limit for that."""
    old, new = tmp_path / "old", tmp_path / "new"
    stat = next(name for name in V1 if name.endswith("memory.stat"))
    files = v2(SLURM_V2, SLURM_V2) | {f"sys/fs/cgroup/{SLURM_V2}/memory.swap.current": f"{30 << 20}\n"}
    found = [
        cgroup.own(root=tree(old, V1 | {stat: f"{V1_STAT}total_swap {30 << 20}\n"})),
        cgroup.own(root=tree(new, files)),
    ]
    assert [one and one.working_set_bytes() for one in found] == [150 << 20, 150 << 20]


def test_a_hierarchy_that_is_mounted_from_within_is_found(tmp_path: Path) -> None:
    """A container runtime may show the job's own directory as the root."""
    mounts = V2_MOUNTS.replace("0:25 / /sys", "0:25 /system.slice/slurmstepd.scope/job_42 /sys")
    files = v2("step_batch/user/task_0", SLURM_V2) | {"proc/self/mountinfo": mounts}
    found = cgroup.own(root=tree(tmp_path, files))
    assert found is not None
    assert found.kills() == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"proc/self/mountinfo": "24 1 254:1 / / rw - ext4 /dev/vda1 rw\n"},
        {"proc/self/cgroup": ""},
        {"proc/self/cgroup": "nonsense"},
        {"proc/self/cgroup": "0::/../elsewhere\n"},
        {"proc/self/mountinfo": V2_MOUNTS.replace("0:25 / /sys", "0:25 /another.slice /sys")},
    ],
)
def test_where_there_is_none_nothing_is_invented(tmp_path: Path, changes: dict[str, str]) -> None:
    """No cgroup file system in sight, no memory controller, a path that is not below what is mounted."""
    assert cgroup.own(root=tree(tmp_path, v2(SLURM_V2, SLURM_V2) | changes)) is None


def test_a_cgroup_that_goes_away_says_nothing(tmp_path: Path) -> None:
    """The limit is then judged by the processes."""
    gone = cgroup.MemoryCgroup(str(tmp_path / "gone"), is_v1=False)
    assert gone.working_set_bytes() is None
    assert gone.kills() == 0


def test_what_has_been_covered_is_reached_by_its_descriptor(tmp_path: Path) -> None:
    """The agent hides cgroups of version 1 from crun, and still knows its own."""
    root = tree(tmp_path, V1)
    descriptor = os.open(tmp_path / "sys/fs/cgroup", os.O_PATH)
    try:
        (tmp_path / "proc/self/fd").mkdir()
        (tmp_path / f"proc/self/fd/{descriptor}").symlink_to(f"/proc/self/fd/{descriptor}")
        (tmp_path / "sys/fs/cgroup").rename(tmp_path / "elsewhere")
        found = cgroup.own(root=root, covered=descriptor)
        assert found is not None
        assert found.working_set_bytes() == 120 << 20
    finally:
        os.close(descriptor)


def test_the_node_s_files_in_the_pod_do_not_hide_its_cgroup(tmp_path: Path) -> None:
    """With a hostPath volume the node's root is in sight a second time, and all that is mounted there."""
    again = "".join(f"{line.replace(' /sys/', ' /run/hpk/host/sys/')}\n" for line in V1_MOUNTS.splitlines()[1:])
    root = tree(tmp_path, V1 | {"proc/self/mountinfo": V1_MOUNTS + again})
    (tmp_path / "proc/self/fd").mkdir()
    (tmp_path / "proc/self/fd/7").symlink_to(tmp_path / "sys/fs/cgroup")
    found = cgroup.own(root=root, covered=7)
    assert found is not None
    assert found.kills() == 2


@pytest.mark.parametrize(
    ("mounts", "covers", "keeps"),
    [
        (V1_MOUNTS, ["/sys/fs/cgroup"], {int}),
        (V2_MOUNTS, [], {type(None)}),
        ("24 1 254:1 / / rw - ext4 /dev/vda1 rw", ["/sys/fs/cgroup"], {type(None)}),
    ],
)
def test_crun_sees_cgroups_of_version_2_or_none(
    mounts: str, covers: list[str], keeps: set[type], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses to start anything where both versions are mounted, as they are on many nodes."""
    covered: list[str] = []
    monkeypatch.setattr(linux, "mount", lambda _source, target, *_more, **_options: covered.append(target))
    box = sandbox.PodSandbox.__new__(sandbox.PodSandbox)
    box.cgroups = None
    box._cover_cgroups(mounts)
    assert covered == covers
    assert {type(box.cgroups)} == keeps
    if box.cgroups is not None:
        os.close(box.cgroups)
