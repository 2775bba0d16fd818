"""``python -m tests.bench [--name NAME] --out FILE``: measure, print a table, write a JSON list.

Each entry is {name, value, unit, baseline, ratio, n}: the value is a median, the baseline the median of what it is
compared with in the same run, the ratio value over baseline.  More of each (p90, stages) is under ``details``.
The table is Markdown, for docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.bench import cpu, overhead, restart, startup, streaming, workflows

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "pod-startup": startup.pod_startup,
    "footprint": startup.footprint,  # before the restarts of the next, whose imports are no rest
    "node-ready": startup.node_ready,
    "hundred-pods": startup.hundred_pods,
    "cpu-per-pod": cpu.per_pod,
    "restart-adopts-500": restart.adopts,
    "overhead-cpu": overhead.cpu,
    "overhead-memory": overhead.memory,
    "overhead-io-scratch": overhead.scratch,
    "overhead-io-home": overhead.home,
    "streaming-exec": streaming.exec_roundtrip,
    "streaming-copy": streaming.copy,
    "streaming-port-forward": streaming.port_forward,
    "hundred-steps": workflows.hundred_steps,
}

NEED_MANY_JOBS = ("hundred-pods", "hundred-steps", "cpu-per-pod")
"""Not measured where the site takes five jobs at a time: a hundred plain ones would not be accepted."""
NEED_NO_CLUSTER = ("restart-adopts-500",)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help=f"only those that begin so; of {', '.join(BENCHMARKS)}")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    possible = [name for name in BENCHMARKS if not (cluster.PROFILE.submit_limit and name in NEED_MANY_JOBS)]
    wanted = [name for name in possible if name.startswith(options.name)]
    if not wanted:
        parser.error(f"no benchmark begins with '{options.name}' (there are {', '.join(possible)})")
    if set(wanted) - set(NEED_NO_CLUSTER):
        cluster.up(is_quiet=True)
    found: list[dict[str, Any]] = []
    for name in wanted:
        print(f"{name} …", file=sys.stderr, flush=True)  # noqa: T201
        found += BENCHMARKS[name]()
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    print("\n".join(table(found)))  # noqa: T201
    return 0


def table(found: list[dict[str, Any]]) -> list[str]:
    """The lines of a Markdown table, and what a reader must know of where it comes from."""
    lines = [
        f"Commit {_commit()}, {dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {_machine()}, site profile `{_profile()}`:",
        "",
        "| benchmark | median | of what it is compared with | ratio | n |",
        "|-|-|-|-|-|",
    ]
    for entry in found:
        unit, base, ratio = entry["unit"], entry["baseline"], entry["ratio"]
        against, times = (f"{_number(base)} {unit}", f"{ratio:.3f}") if base is not None else ("", "")
        lines.append(f"| {entry['name']} | {_number(entry['value'])} {unit} | {against} | {times} | {entry['n']} |")
    details = [
        f"{entry['name']}: " + ", ".join(f"{key} {_number(value)}" for key, value in entry["details"].items())
        for entry in found
    ]
    return [*lines, "", *details]


def _number(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _profile() -> str:
    return cluster.PROFILE.name


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return f"{os.cpu_count()} x {model}, Linux {os.uname().release.split('-')[0]}"


def _commit() -> str:
    argv = ["git", "-C", str(cluster.ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
