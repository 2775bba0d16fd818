"""Runs on a host of the cluster as the user, and measures how long a workload takes to start.

Standard library only, and yaml.

The workload is one program of one image: it makes a file on the shared home, whose time is its time stamp.
``direct`` is `sbatch` of a script that runs `apptainer exec IMAGE`, ``pod`` a pod of the same image and command
created by a warm API client, ``kubectl`` the same by kubectl.  Each is timed from just before the submission to
the workload's time stamp, in alternation, so that the machine's mood meets all alike.  slurmctld starts batch jobs
once a second: the three of a round are submitted at the same part of the second, each round at another one, so that
all wait for slurmctld alike, and on average as long as anybody does.

    probe.py ROUNDS IMAGE SIF DIRECTORY [cold]

prints one JSON document: {"direct": [seconds], "pod": [...], "kubectl": [...], "end": [...], "stages": [...],
"direct_waits": [seconds from sbatch's answer to the script's first line], "pod_waits": [...]}.
"""

from __future__ import annotations

import base64
import datetime as dt
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
from pathlib import Path
from typing import Any

import yaml

PATIENCE_SECONDS = 60.0
PODS = "/api/v1/namespaces/default/pods"


def access() -> tuple[str, ssl.SSLContext]:
    """Where the API server is, and as whom the user speaks to it."""
    document = yaml.safe_load(Path(os.environ.get("KUBECONFIG", Path.home() / ".kube/config")).read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
    with tempfile.NamedTemporaryFile("wb") as file:
        file.write(base64.b64decode(user["client-certificate-data"]))
        file.write(base64.b64decode(user["client-key-data"]))
        file.flush()
        context.load_cert_chain(file.name)
    return cluster["server"], context


class Client:
    """The API server by one kept connection, as the user of the kubeconfig."""

    def __init__(self) -> None:
        url, context = access()
        parts = urllib.parse.urlsplit(url)
        self._line = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, context=context, timeout=PATIENCE_SECONDS
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request; the decoded answer."""
        data = None if body is None else json.dumps(body).encode()
        try:
            status, text = self._exchange(method, path, data)
        except ConnectionError:  # the server has ended it: it was idle for too long
            self._line.close()
            status, text = self._exchange(method, path, data)
        if status >= 400:
            raise RuntimeError(f"{method} {path}: {status} {text.decode(errors='replace')}")
        return json.loads(text)

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        self._line.request(method, path, data, {"Content-Type": "application/json"})
        answer = self._line.getresponse()
        return answer.status, answer.read()


def wait_for(path: Path) -> float:
    """The time at which the workload made the file."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            return path.stat().st_mtime_ns / 1e9
        except FileNotFoundError:
            time.sleep(0.005)
    raise TimeoutError(f"{path.name}: the workload has not started after {PATIENCE_SECONDS:.0f} s")


def command(mark: str) -> list[str]:
    """What the workload runs."""
    return ["touch", mark]


def settle(phase: float) -> None:
    """Let the last job go, then wait for this part of a second."""
    while set(subprocess.check_output(["squeue", "--me", "-h", "-o", "%j"], text=True).split()) - {"hpk"}:
        time.sleep(0.1)
    time.sleep((phase - time.time()) % 1.0)


def direct(directory: Path, number: int, sif: str) -> tuple[float, float]:
    """Sbatch of `apptainer exec`: start-up, and how much of it went by between sbatch's answer and the script."""
    mark = directory / f"direct-{number}"
    words = " ".join(f"'{word}'" for word in command(str(mark)))
    script = f"#!/bin/bash\necho $EPOCHREALTIME > {mark}.script\nexec apptainer exec -B {directory} {sif} {words}\n"
    before = time.time()
    subprocess.run(
        ["sbatch", "--parsable", f"--chdir={directory}", "--output=/dev/null"],
        input=script.encode(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    submitted = time.time()
    began = wait_for(mark)
    return began - before, float(mark.with_name(f"{mark.name}.script").read_text()) - submitted


def manifest(directory: Path, name: str, image: str) -> dict[str, Any]:
    """The same as a pod."""
    mount = {"name": "out", "mountPath": str(directory)}
    container = {"name": "c", "image": image, "command": command(str(directory / name)), "volumeMounts": [mount]}
    volume = {"name": "out", "hostPath": {"path": str(directory)}}
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": [volume]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def pod(client: Client, directory: Path, number: int, image: str) -> tuple[float, float, dict[str, float]]:
    """Start-up, end to status, and the stages in seconds since the submission."""
    name = f"pod-{directory.name}-{number}"
    before = time.time()
    client.call("POST", PODS, manifest(directory, name, image))
    began = wait_for(directory / name)
    ended = wait_for_end(client, name)
    directory = Path.home() / ".hpk/pods" / ended["metadata"]["uid"]
    report = json.loads((directory / "report.json").read_text())
    finished = report["containers"]["c"]["terminated"]["finished_at"]
    submitted = json.loads((directory / "job.json").read_text())["submitted_at"]
    marks = re.findall(r"(\w+)=([\d.]+)", (directory / "job.out").read_text())
    stages = {"submitted": submitted, **{name: float(at) for name, at in marks}, "workload": began}
    return began - before, ended["seen"] - finished, {name: at - before for name, at in stages.items()}


def wait_for_end(client: Client, name: str) -> Any:
    """The pod once its status says that it has ended, with the time at which we saw it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = client.call("GET", f"{PODS}/{name}")
        if found["status"].get("phase") in {"Succeeded", "Failed"}:
            return found | {"seen": time.time()}
        time.sleep(0.01)
    raise TimeoutError(f"pod {name} has not ended after {PATIENCE_SECONDS:.0f} s")


def by_kubectl(client: Client, directory: Path, number: int, image: str) -> float:
    """Start-up by `kubectl create`, its own start included."""
    name = f"kubectl-{directory.name}-{number}"
    before = time.time()
    text = json.dumps(manifest(directory, name, image)).encode()
    subprocess.run(["kubectl", "create", "-f", "-"], input=text, check=True, stdout=subprocess.DEVNULL)
    began = wait_for(directory / name)
    wait_for_end(client, name)
    return began - before


def main() -> None:
    """Measure in alternation and print."""
    rounds, image, sif = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    directory = Path(sys.argv[4]) / dt.datetime.now(tz=dt.UTC).strftime("%H%M%S%f")
    directory.mkdir(parents=True)
    client = Client()
    keys = ("direct", "direct_waits", "pod", "pod_waits", "kubectl", "end", "stages")
    found: dict[str, list[Any]] = {key: [] for key in keys}
    is_cold = sys.argv[5:] == ["cold"]
    if not is_cold:
        direct(directory, 0, sif)
        pod(client, directory, 0, image)
    for number in range(1, rounds + 1):
        phase = number * 0.618 % 1.0
        settle(phase)
        start, wait = direct(directory, number, sif)
        found["direct"].append(start)
        found["direct_waits"].append(wait)
        settle(phase)
        start, end, stages = pod(client, directory, number, image)
        found["pod"].append(start)
        found["pod_waits"].append(stages["script"] - stages["submitted"])
        found["end"].append(end)
        found["stages"].append(stages)
        if not is_cold:
            settle(phase)
            found["kubectl"].append(by_kubectl(client, directory, number, image))
    names = [item["metadata"]["name"] for item in client.call("GET", PODS)["items"]]
    for name in names:
        if f"-{directory.name}-" in name:
            client.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    print(json.dumps(found))  # noqa: T201 - for whoever started it


if __name__ == "__main__":
    main()
