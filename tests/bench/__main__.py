"""``python -m tests.bench [--name NAME] --out FILE``: measure, print a table, write a JSON list.

Each entry is {name, value, unit, baseline, ratio, n}: the value is a median, the baseline the median of what it is
compared with in the same run, the ratio value over baseline.  More of each (p90, stages) is under ``details``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.bench import startup, workflows

if TYPE_CHECKING:
    from collections.abc import Callable

BENCHMARKS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "pod-startup": startup.pod_startup,
    "node-ready": startup.node_ready,
    "footprint": startup.footprint,
    "hundred-pods": startup.hundred_pods,
    "hundred-steps": workflows.hundred_steps,
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", choices=sorted(BENCHMARKS), help="only this one")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    cluster.up(is_quiet=True)
    found = [entry for name in ([options.name] if options.name else BENCHMARKS) for entry in BENCHMARKS[name]()]
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    for entry in found:
        show(entry)
    return 0


def show(entry: dict[str, Any]) -> None:
    """One line for a person."""
    against = f"  {entry['ratio']:.2f} times {entry['baseline']:.3f}" if entry["ratio"] is not None else ""
    more = "  ".join(f"{key} {value:.3f}" for key, value in entry.get("details", {}).items())
    print(f"{entry['name']:<28} {entry['value']:.3f} {entry['unit']}{against}  n={entry['n']}  {more}")  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
