"""Figures are read as the programs mean them, and shown with what a reader must know."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.bench import __main__ as bench
from tests.bench import overhead, result, shares
from tests.site.hpksite import paths

if TYPE_CHECKING:
    from pathlib import Path

SYSBENCH = """\
sysbench 1.0.20 (using system LuaJIT 2.1.1700206165)

CPU speed:
    events per second:  1234.56

General statistics:
    total time:                          3.0004s
"""


def test_each_program_s_figure_is_found() -> None:
    """Rates, reading and writing together; words before fio's JSON do no harm."""
    parts = {"read": {"bw_bytes": 3 << 20, "iops": 10.5}, "write": {"bw_bytes": 1 << 20, "iops": 4.5}}
    fio = "fio: a note\n" + json.dumps({"jobs": [parts]})
    assert overhead.sysbench_rate(SYSBENCH) == 1234.56
    assert overhead.fio_mebibytes(fio) == 4.0
    assert overhead.fio_operations(fio) == 15.0


def test_a_table_says_where_it_comes_from() -> None:
    """Commit, date, machine and profile; an entry without comparison has empty columns."""
    found = [
        result.result("pod-startup", [0.4, 0.6, 0.5], baseline=[0.25, 0.25]),
        result.result("memory", [573.58], unit="MiB"),
    ]
    lines = bench.table(found)
    assert lines[0].startswith("Commit ")
    assert "profile `flannel`" in lines[0] or "profile `bare`" in lines[0]
    assert "| pod-startup | 0.500 s | 0.250 s | 2.000 | 3 |" in lines
    assert "| memory | 573.6 MiB |  |  | 1 |" in lines


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("/usr/bin/python3.13 -IS /opt/hpk/bin/hpk serve", "kubelet"),
        ("/opt/hpk/bin/kube-apiserver --x", "api-server"),
        ("python3 -IS /tmp/hpk.X/gateway/host.pyz gateway /tmp/hpk.X/gateway/socket", "gateway"),
        ("slurmdbd -D", "accounting"),
        ("slurmd -D", "nodes"),
    ],
)
def test_cpu_is_counted_where_it_belongs(command: str, part: str) -> None:
    """By the command line; what is nobody's is the nodes'."""
    assert shares.part_of(command) == part


@pytest.mark.parametrize("made_by_slurm", ["slurm_c1", f"{paths.CGROUP}/c1/slurm_c1"])
def test_what_slurm_starts_counts_with_the_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_by_slurm: str
) -> None:
    """Slurm's cgroups are the machine's, or below those of a host; those of a cluster that is apart do not count."""
    monkeypatch.setattr(shares, "ROOT", tmp_path)
    for group, seconds in ((made_by_slurm, 2), ("bench/nodes", 1), ("other", 4), ("hpk-site-apart-x/c1/slurm", 8)):
        (tmp_path / group).mkdir(parents=True)
        (tmp_path / group / "cpuacct.usage").write_text(f"{seconds}000000000\n")
    assert shares.Shares(tmp_path / "bench").seconds()[shares.NODES] == 3.0
