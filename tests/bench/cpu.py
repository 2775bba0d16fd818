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
"""How long the hosts are watched at rest, to know what they do anyway."""
CONTROL_PLANE = ("etcd", "api-server", "controller-manager", "kubelet", "gateway")
"""What has no part in a plain job: what it does meanwhile it does at rest, also while pods run."""


def per_pod() -> list[dict[str, Any]]:
    """CPU seconds of one of some pods at once, by part, without what the cluster does at rest.

    Plain jobs and pods take turns.  What the control plane uses while plain jobs run is its rest.
    """
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
                seconds, used = _spent(parts, kind)
                if kind == "direct":
                    rest |= {part: used[part] / seconds for part in CONTROL_PLANE}
                found.append({part: (used[part] - rest.get(part, 0.0) * seconds) / COUNT for part in used})
    pods, plain = ([sum(one.values()) for one in arms[kind]] for kind in ("pods", "direct"))
    details = {part: sum(one[part] for one in arms["pods"]) / ROUNDS for part in arms["pods"][0]}
    details |= {f"plain-{part}": sum(one[part] for one in arms["direct"]) / ROUNDS for part in ("nodes", "slurmctld")}
    return [result.result("cpu-per-pod", pods, baseline=plain, details=details)]


def _run(kind: str, count: int) -> float:
    image = startup.SIF if kind == "direct" else startup.IMAGE
    argv = ("python3", f"{startup.WORK}/short.py", kind, str(count), image, startup.WORK)
    return float(startup.client(*startup.JOB, *argv, seconds=400).stdout)


def _spent(parts: shares.Shares, kind: str) -> tuple[float, dict[str, float]]:
    """Return how long the jobs or pods took, and the CPU seconds of all of them, by part."""
    began, before = time.monotonic(), parts.seconds()
    client = _run(kind, COUNT)
    _settle()
    after, seconds = parts.seconds(), time.monotonic() - began
    return seconds, {**{part: after[part] - before[part] for part in after}, "client": client}


def _settle() -> None:
    """Wait until no job but the control plane's is left, and what follows an end is done."""
    deadline = time.monotonic() + 300
    while set(cluster.shell("squeue -h -o %j").split()) - {"hpk"}:
        if time.monotonic() > deadline:
            raise TimeoutError("jobs do not end")
        time.sleep(0.5)  # slurmctld is asked as seldom as will do
    time.sleep(2.0)
