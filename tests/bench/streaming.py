"""exec, cp and port-forward, against what Slurm and plain TCP do between the same hosts."""

from __future__ import annotations

import json
import secrets
from typing import Any

from tests import cluster
from tests.bench import overhead, result, startup

ROUNDS = {"exec": 15, "copy": 3, "forward": 5}


def exec_roundtrip() -> list[dict[str, Any]]:
    """``true`` by kubectl exec and by a client that is warm, each against ``srun --overlap`` in the same job."""
    found = measure("exec")
    return [
        result.result("exec-roundtrip", found["pod"], baseline=found["direct"]),
        result.result("exec-roundtrip-warm", found["warm"], baseline=found["direct"]),
    ]


def copy() -> list[dict[str, Any]]:
    """One GiB to the node: kubectl cp against srun's standard input."""
    found = measure("copy")
    return [result.result("copy-1gib", found["pod"], baseline=found["direct"])]


def port_forward() -> list[dict[str, Any]]:
    """Bytes read through kubectl port-forward against a socat on the same host."""
    found = measure("forward")
    return [result.result("port-forward", found["pod"], unit="MiB/s", baseline=found["direct"])]


def measure(what: str) -> dict[str, list[float]]:
    """Run the probe as the user."""
    directory = f"{startup.WORK}/sessions-{secrets.token_hex(3)}"
    setup = {"image": overhead.IMAGE, "node": overhead.NODE, "directory": directory}
    startup.put("probe.py")
    startup.put("sessions.py")
    argv = ("python3", f"{startup.WORK}/sessions.py", what, str(ROUNDS[what]), json.dumps(setup))
    try:
        done = startup.client(*startup.JOB, *argv, seconds=600)
    finally:
        cluster.shell(f"rm -rf {directory}")
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found
