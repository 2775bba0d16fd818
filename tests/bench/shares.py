"""CPU seconds of the cluster's parts, by cgroups of our own (cpuacct of cgroup v1).

Whatever a process forks is counted with it, and what others do on the machine is not.  Slurm may have cgroups of its
own for what it starts, below the host's or the machine's; they are counted with the nodes.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from tests.site.hpksite import members, paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path("/sys/fs/cgroup/cpuacct")
PARTS = {
    "etcd": "/opt/hpk/bin/etcd",
    "api-server": "/opt/hpk/bin/kube-apiserver",
    "controller-manager": "/opt/hpk/bin/kube-controller-manager",
    "kubelet": "hpk serve",
    "gateway": "host.pyz gateway",
    "slurmctld": "slurmctld",
    "accounting": "slurmdbd",
    "database": "mariadbd",
}
SLURM = ("slurm*", f"{paths.CGROUP}/*/slurm*")
NODES = "nodes"
"""All else: slurmd, what it starts, and the hosts' other daemons."""

REMOVALS = 100
"""How often a cgroup is emptied; each time, whoever was in it may have forked."""


class Unmeasurable(Exception):
    """The machine has no cpuacct."""


class Shares:
    """The cluster's processes, in one cgroup for each part."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def seconds(self) -> dict[str, float]:
        """Return the CPU seconds so far, by part."""
        found = {part: _usage(self._root / part) for part in (*PARTS, NODES)}
        found[NODES] += sum(_usage(path) for pattern in SLURM for path in ROOT.glob(pattern))
        return found


@contextlib.contextmanager
def measured() -> Iterator[Shares]:
    """Move the cluster's processes into cgroups, and back to where they were.

    Raises:
        Unmeasurable: There is no such controller.
    """
    if not (ROOT / "cgroup.procs").exists():
        raise Unmeasurable("no cpuacct cgroup is mounted here")
    root = ROOT / f"hpk-bench-{secrets.token_hex(3)}"
    before: dict[int, Path] = {}
    for part in (*PARTS, NODES):
        (root / part).mkdir(parents=True)
    try:
        before = {pid: _group(pid) for pid in members.find()}
        for pid in before:
            _move(pid, root / part_of(_command(pid)))
        yield Shares(root)
    finally:
        for directory in (*(root / part for part in (*PARTS, NODES)), root):
            _remove(directory, before)


def _remove(directory: Path, before: Mapping[int, Path]) -> None:
    """Move whoever is in a cgroup to where it was, and remove it; again, where one of them has forked meanwhile."""
    for tries_left in reversed(range(REMOVALS)):
        for left in (directory / "cgroup.procs").read_text().split():
            _move(int(left), before.get(int(left), ROOT))
        try:
            directory.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or not tries_left:
                raise
        else:
            return


def part_of(command: str) -> str:
    """Return which part a process is of, by its command line."""
    return next((part for part, word in PARTS.items() if word in command), NODES)


def _command(pid: int) -> str:
    """Return a process's command line, '' if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _group(pid: int) -> Path:
    """Return the cgroup that a process is in, the machine's root one if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "cpuacct" in controllers.split(","):
                return ROOT / path.lstrip("/")
    return ROOT


def _move(pid: int, group: Path) -> None:
    with contextlib.suppress(OSError):  # it has ended
        (group / "cgroup.procs").write_text(str(pid))


def _usage(group: Path) -> float:
    try:
        return int((group / "cpuacct.usage").read_text()) / 1e9
    except OSError:
        return 0.0
