"""What the container costs a program that runs: each in a pod against the same program of the same node as a plain job.

Values are rates, so that a ratio of 0.99 says that a pod costs one per cent.
"""

from __future__ import annotations

import json
import re
import secrets
import statistics
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.bench import result, startup

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 9
SECONDS = 3
NODE = "c1"
IMAGE = f"{cluster.REGISTRY}/bench:1"
# Buffered, as programs write, but never all of it from memory: what is written is synced, what is read was dropped.
FIO = (
    f"fio --name=x --directory=$DATA --size=256m --time_based --runtime={SECONDS} --ioengine=psync --thread "
    "--randrepeat=1 --invalidate=1 --output-format=json"
)
SEQUENTIAL = f"{FIO} --rw=readwrite --bs=1m --fsync=32"
RANDOM = f"{FIO} --rw=randrw --bs=4k --fsync=256"


def cpu() -> list[dict[str, Any]]:
    """One thread that computes primes (sysbench)."""
    command = f"sysbench cpu --threads=1 --time={SECONDS} run"
    return [compare("overhead-cpu", command, unit="events/s", read=sysbench_rate)]


def memory() -> list[dict[str, Any]]:
    """One thread that reads two arrays and writes a third, far larger than any cache."""
    return [compare("overhead-memory", f"stream {SECONDS} 128", unit="MB/s", read=float)]


def scratch() -> list[dict[str, Any]]:
    """An emptyDir against the node's scratch directory."""
    return _files("overhead-io-scratch", "scratch")


def home() -> list[dict[str, Any]]:
    """A hostPath of the shared home against the shared home."""
    return _files("overhead-io-home", "home")


def _files(name: str, data: str) -> list[dict[str, Any]]:
    return [
        compare(name, SEQUENTIAL, unit="MiB/s", read=fio_mebibytes, data=data),
        compare(f"{name}-random", RANDOM, unit="IO/s", read=fio_operations, data=data),
    ]


def compare(
    name: str, command: str, *, unit: str, read: Callable[[str], float], data: str = "scratch"
) -> dict[str, Any]:
    """One program, in turn as a plain job and in a pod."""
    directory = f"{startup.WORK}/{name}-{secrets.token_hex(3)}"
    setup = {"command": command, "image": IMAGE, "node": NODE, "directory": directory, "data": data}
    startup.put("probe.py")
    startup.put("programs.py")
    try:
        done = startup.client(
            *(*startup.JOB, "python3", f"{startup.WORK}/programs.py", str(ROUNDS), json.dumps(setup)),
            seconds=60 + 30 * ROUNDS,
        )
    finally:
        cluster.shell(f"rm -rf {directory}")
    said: dict[str, list[str]] = json.loads(done.stdout)
    pods, plain = ([read(text) for text in said[kind]] for kind in ("pod", "direct"))
    # Neighbours in time share the machine's mood: the median of their ratios says more than that of each side.
    pairs = statistics.median(pod / direct for pod, direct in zip(pods, plain, strict=True))
    return result.result(name, pods, unit=unit, baseline=plain, details={"ratio-of-pairs": pairs})


def sysbench_rate(text: str) -> float:
    """Events per second."""
    return float(re.findall(r"events per second:\s+([\d.]+)", text)[0])


def fio_mebibytes(text: str) -> float:
    """MiB per second, read and written together."""
    return sum(part["bw_bytes"] for part in _fio(text)) / 2**20


def fio_operations(text: str) -> float:
    """Reads and writes per second."""
    return sum(part["iops"] for part in _fio(text))


def _fio(text: str) -> list[dict[str, float]]:
    """The reading and the writing part; fio may print words of its own first."""
    (job,) = json.loads(text[text.index("{") :])["jobs"]
    return [job["read"], job["write"]]
