"""How long a pod, and the cluster, take to start, against what Slurm and Apptainer take by themselves."""

from __future__ import annotations

import json
import statistics
import time
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.bench import result

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable

ROUNDS = 21
COLD_ROUNDS = 5
UPS = 5
SETTLED_SECONDS = 30.0
"""After so long the memory is what a burst of pods has left for good."""
WORK = "/home/alice/bench"
IMAGE = f"{cluster.REGISTRY}/busybox:1"
SIF = f"{WORK}/busybox.sif"
JOB = ("SBATCH_ACCOUNT=research", "SBATCH_TIMELIMIT=10") if cluster.PROFILE.strict else ()
"""What a plain job's environment needs where the site's policy asks for it."""
CLIENT = "c2" if cluster.PROFILE.filtered else cluster.HOST
"""Where the measuring client runs: such a site's login node does not reach the API server's port."""


def pod_startup() -> list[dict[str, Any]]:
    """From just before the submission to the workload's own time stamp, warm, and from its end to the status."""
    bare_image()
    found = probe(ROUNDS, IMAGE)
    entries = [
        result.result("pod-startup", found["pod"], baseline=found["direct"], details=_p90("bare", found["direct"])),
        result.result("pod-startup-beyond-slurm", _beyond(found, "pod"), baseline=_beyond(found, "direct")),
        result.result("pod-startup-kubectl", found["kubectl"], baseline=found["direct"]),
        result.result("pod-end-to-status", found["end"]),
    ]
    stages = {
        key: statistics.median(s[key] for s in found["stages"] if key in s) for key in max(found["stages"], key=len)
    }
    entries[0]["details"] |= {f"at-{name}": seconds for name, seconds in stages.items()}
    # Where the control plane does not reach the registry there are no cold images.
    return entries if cluster.PROFILE.filtered else [*entries, cold_startup(found["direct"])]


def bare_image() -> None:
    """Have the image as the SIF file that bare jobs use."""
    cluster.shell(
        f"mkdir -p {WORK}; [ -e {SIF} ] || APPTAINER_NOHTTPS=1 apptainer --silent pull {SIF} docker://{IMAGE}"
    )


def _beyond(found: dict[str, list[float]], arm: str) -> list[float]:
    """Start-up without what slurmctld and slurmd took between sbatch's answer and the script's first line."""
    return [start - wait for start, wait in zip(found[arm], found[f"{arm}_waits"], strict=True)]


def cold_startup(direct: list[float]) -> dict[str, Any]:
    """The same with an image that was never converted; bare Apptainer has its SIF already."""
    values = []
    for _ in range(COLD_ROUNDS):
        cluster.shell("rm -rf ~/.hpk/images/*")
        values.append(probe(1, IMAGE, "cold")["pod"][0])
    return result.result("pod-startup-cold-image", values, baseline=direct)


def probe(rounds: int, image: str, *more: str) -> dict[str, list[Any]]:
    """Run the probe as the user."""
    put("probe.py")
    argv = ("python3", f"{WORK}/probe.py", str(rounds), image, SIF, WORK, *more)
    done = client(*JOB, *argv, seconds=600)
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


def client(*command: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run variables and a command on the clients' host, where there is a kubectl."""
    where = f"{WORK}/bin"
    script = f'#!/bin/sh\nexec {" ".join(cluster.KUBECTL)} "$@"\n'
    if not cluster.PROFILE.kubectl:
        cluster.run(
            "sh", "-c", f"mkdir -p {where}; cat >{where}/kubectl; chmod +x {where}/kubectl", stdin=script.encode()
        )
    return cluster.run("env", f"PATH={where}:/usr/local/bin:/usr/bin:/bin", *command, host=CLIENT, **options)


def put(name: str) -> None:
    """Copy a script of this folder to the user."""
    text = (cluster.ROOT / "tests/bench" / name).read_bytes()
    cluster.run("bash", "-c", f"mkdir -p {WORK}; cat > {WORK}/{name}", stdin=text)


def node_ready() -> list[dict[str, Any]]:
    """From `sbatch hpk.sbatch` to node Ready, as a client on the control host sees it."""
    values = []
    for _ in range(UPS):
        cluster.stop()
        text = (cluster.ROOT / "tests/bench/ready.sh").read_bytes()
        values.append(float(client("bash", stdin=text, seconds=120).stdout))
    return [result.result("node-ready", values)]


def footprint() -> list[dict[str, Any]]:
    """Resident memory (MiB) of the control plane's processes, and CPU at rest (per cent of one core)."""
    used = min(_cpu_percent(20.0) for _ in range(4))  # rest is where it does least: what was there before may linger
    resident = _resident()
    return [
        result.result("resident-memory", [sum(resident.values())], unit="MiB", details=resident),
        result.result("kubelet-memory", [resident["hpk"]], unit="MiB"),
        result.result("idle-cpu", [used], unit="%"),
    ]


NAMES = ("etcd", "kube-apiserver", "kube-controller", "hpk")


def _processes() -> Iterable[tuple[str, float, float]]:
    """(name, resident MiB, CPU seconds) of the control plane's processes."""
    host = cluster.shell("squeue -h --me -n hpk -o %N").strip()
    script = r"""
for pid in $(ps -u alice -o pid=); do
  cmd=$(tr '\0' ' ' < /proc/$pid/cmdline 2>/dev/null)
  case $cmd in /opt/hpk/bin/[ek]*|/usr/bin/python3*"hpk serve"*) ;; *) continue ;; esac
  rss=$(awk '/^VmRSS/ {print $2}' /proc/$pid/status)
  echo "$rss $(awk '{print $14 + $15}' /proc/$pid/stat) $cmd"
done"""
    for line in cluster.shell(script, host=host).splitlines():
        rss, ticks, command = line.split(" ", 2)
        name = next((name for name in NAMES if f"/{name}" in command.split(" ")[0]), "hpk")
        yield name, int(rss) / 1024, int(ticks) / 100


def _cpu_percent(seconds: float) -> float:
    before, began = _cpu_seconds(), time.monotonic()
    time.sleep(seconds)  # the measurement itself: CPU used in this time
    return 100 * (_cpu_seconds() - before) / (time.monotonic() - began)


def _resident() -> dict[str, float]:
    found: dict[str, float] = {}
    for name, mebibytes, _ in _processes():
        found[name] = found.get(name, 0.0) + mebibytes
    return found


def _cpu_seconds() -> float:
    return sum(seconds for _, _, seconds in _processes())


def hundred_pods() -> list[dict[str, Any]]:
    """A hundred pods at once, to the last one's success, against a hundred sbatch jobs of the same payload."""
    bare_image()
    text = (cluster.ROOT / "tests/bench/hundred.sh").read_bytes()
    bare = float(cluster.run("env", *JOB, "bash", stdin=text, seconds=600).stdout)
    manifest = (cluster.ROOT / "tests/bench/hundred.yaml").read_text().replace("${REGISTRY}", cluster.REGISTRY)
    began = time.monotonic()
    cluster.kubectl("create", "-f", "-", stdin=manifest.encode())
    cluster.kubectl("wait", "job/hundred", "--for=condition=Complete", "--timeout=500s", seconds=520)
    seconds = time.monotonic() - began
    cluster.kubectl("delete", "job", "hundred", "--cascade=foreground", seconds=200)
    details = _resident()
    time.sleep(SETTLED_SECONDS)  # the measurement itself: what stays
    details |= {f"{name}-later": mebibytes for name, mebibytes in _resident().items()}
    return [result.result("hundred-pods", [seconds], baseline=[bare], details=details)]


def _p90(name: str, values: list[float]) -> dict[str, float]:
    return {f"{name}-p90": statistics.quantiles(values, n=10)[-1]}
