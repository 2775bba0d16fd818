"""What a short pod costs in CPU, all processes together, against a plain job of the same payload."""

from __future__ import annotations

import time
from typing import Any

from tests import cluster
from tests.bench import result, shares, startup

COUNT = 12
ROUNDS = 9
"""A round on a small machine differs from the next by a fifth."""
REST_SECONDS = 10.0
"""How long the cluster is watched at rest, to know what it does anyway."""


def per_pod() -> list[dict[str, Any]]:
    """CPU seconds of one of some pods at once, by part, without what the cluster does at rest."""
    startup.bare_image()
    for name in ("probe.py", "short.py"):
        startup.put(name)
    arms: dict[str, list[dict[str, float]]] = {"direct": [], "pods": []}
    _run("pods", 1)  # the image is converted, and all is warm
    with shares.measured() as parts:
        _settle()
        before = parts.seconds()
        time.sleep(REST_SECONDS)  # the measurement itself: what is used in this time
        rest = {part: (now - before[part]) / REST_SECONDS for part, now in parts.seconds().items()}
        for _ in range(ROUNDS):
            for kind, found in arms.items():
                found.append(_spent(parts, rest, kind))
    pods, plain = ([sum(one.values()) for one in arms[kind]] for kind in ("pods", "direct"))
    details = {part: sum(one[part] for one in arms["pods"]) / ROUNDS for part in arms["pods"][0]}
    details |= {f"plain-{part}": sum(one[part] for one in arms["direct"]) / ROUNDS for part in ("nodes", "slurmctld")}
    return [result.result("cpu-per-pod", pods, baseline=plain, details=details)]


def _run(kind: str, count: int) -> float:
    image = startup.SIF if kind == "direct" else startup.IMAGE
    argv = ("python3", f"{startup.WORK}/short.py", kind, str(count), image, startup.WORK)
    return float(startup.client(*startup.JOB, *argv, seconds=400).stdout)


def _spent(parts: shares.Shares, rest: dict[str, float], kind: str) -> dict[str, float]:
    """CPU seconds of one of the jobs or pods, by part."""
    began, before = time.monotonic(), parts.seconds()
    client = _run(kind, COUNT)
    _settle()
    after, seconds = parts.seconds(), time.monotonic() - began
    found = {part: (after[part] - before[part] - rest[part] * seconds) / COUNT for part in after}
    found["client"] = client / COUNT
    return found


def _settle() -> None:
    """Wait until no job but the control plane's is left, and what follows an end is done."""
    deadline = time.monotonic() + 300
    while set(cluster.shell("squeue -h -o %j").split()) - {"hpk"}:
        if time.monotonic() > deadline:
            raise TimeoutError("jobs do not end")
        time.sleep(0.5)  # slurmctld is asked as seldom as will do
    time.sleep(2.0)
