"""Runs on a host of the cluster as the user: exec, cp and port-forward against what Slurm and plain TCP do.

    sessions.py WHAT ROUNDS SETUP

WHAT is ``exec``, ``copy`` or ``forward``; SETUP is JSON: ``image``, ``node``, ``directory`` (on the shared home).
Prints {"pod": [...], "direct": [...], ...}: seconds for exec and copy, MiB per second for forward.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from tests.bench import probe
else:
    import probe  # beside this file, wherever both were put

PORT = 7000
COPIED_BYTES = 1 << 30
FORWARD_SECONDS = 3.0
SERVE = f"exec socat -u OPEN:/dev/zero TCP-LISTEN:{PORT},fork,reuseaddr"
CHANNELS = "v5.channel.k8s.io"
STATUS_CHANNEL = 3


class Pod:
    """A pod that serves zeros on a port, and its Slurm job."""

    def __init__(self, client: probe.Client, setup: dict[str, Any]) -> None:
        self._client = client
        self.name = Path(setup["directory"]).name
        container = {
            "name": "c",
            "image": setup["image"],
            "command": ["sh", "-c", SERVE],
            "resources": {"limits": {"cpu": "1", "memory": "512Mi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        spec = {
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "data", "emptyDir": {}}],
        }
        meta = {"name": self.name, "annotations": {"slurm.hpk.io/flags": f"--nodelist={setup['node']}"}}
        client.call("POST", probe.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        deadline = time.monotonic() + probe.PATIENCE_SECONDS
        while (found := client.call("GET", f"{probe.PODS}/{self.name}"))["status"].get("phase") != "Running":
            if time.monotonic() > deadline:
                raise TimeoutError(f"pod {self.name} does not run: {found['status']}")
            time.sleep(0.1)
        home = Path.home() / ".hpk/pods" / found["metadata"]["uid"]
        self.job = json.loads((home / "job.json").read_text())["job_id"]

    def delete(self) -> None:
        """End it."""
        self._client.call("DELETE", f"{probe.PODS}/{self.name}?gracePeriodSeconds=1")

    def srun(self, *command: str) -> list[str]:
        """The command as a step of the pod's job: on its node, outside its containers."""
        return ["srun", "--quiet", "--overlap", f"--jobid={self.job}", "--ntasks=1", "--mem=0", *command]


def timed(do: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    do()
    return time.perf_counter() - began


def run(argv: list[str], **options: Any) -> None:
    """Run a command that must succeed."""
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, **options)


def execs(pod: Pod, rounds: int) -> dict[str, list[float]]:
    """``true`` by kubectl, by a client that is warm, and by srun."""
    found: dict[str, list[float]] = {"pod": [], "warm": [], "direct": []}
    for _ in range(rounds):
        found["pod"].append(timed(lambda: run(["kubectl", "exec", pod.name, "--", "true"])))
        found["warm"].append(warm_exec(pod.name))
        found["direct"].append(timed(lambda: run(pod.srun("true"), stdin=subprocess.DEVNULL)))
    return found


def warm_exec(name: str) -> float:
    """Seconds from the request, on a connection that is there, to the status that ends the session."""
    host, context = access()
    with socket.create_connection(host) as plain, context.wrap_socket(plain, server_hostname=host[0]) as line:
        query = urllib.parse.urlencode({"command": "true", "container": "c", "stdout": "true", "stderr": "true"})
        head = (
            f"GET {probe.PODS}/{name}/exec?{query} HTTP/1.1",
            f"Host: {host[0]}:{host[1]}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Protocol: {CHANNELS}",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        )
        began = time.perf_counter()
        line.sendall("\r\n".join([*head, "", ""]).encode())
        with line.makefile("rb") as answer:
            if b" 101 " not in (first := answer.readline()):
                raise RuntimeError(f"no upgrade: {first!r}")
            while answer.readline() != b"\r\n":
                pass
            while True:
                channel, data = frame(answer)
                if channel == STATUS_CHANNEL:
                    if json.loads(data)["status"] != "Success":
                        raise RuntimeError(data.decode())
                    return time.perf_counter() - began


def frame(answer: Any) -> tuple[int, bytes]:
    """One WebSocket frame of a server: its channel (-1 for control frames) and its data."""
    first, length = answer.read(2)
    size = length & 0x7F
    if size >= 126:
        size = int.from_bytes(answer.read(2 if size == 126 else 8))
    data = answer.read(size)
    if first & 0x0F == 8:
        raise RuntimeError(f"closed before a status: {data!r}")
    return (data[0], data[1:]) if first & 0x0F < 8 and data else (-1, data)


def access() -> tuple[tuple[str, int], ssl.SSLContext]:
    """Where the API server is, and as whom to speak to it."""
    url, context = probe.access()
    parts = urllib.parse.urlsplit(url)
    return (parts.hostname or "", parts.port or 443), context


def copies(pod: Pod, rounds: int, directory: Path) -> dict[str, list[float]]:
    """A file of one GiB to the node: into an emptyDir by kubectl cp, to its scratch by srun's standard input."""
    file = directory / "data"
    with file.open("wb") as data:
        for _ in range(COPIED_BYTES >> 20):
            data.write(os.urandom(1 << 20))
    found: dict[str, list[float]] = {"pod": [], "direct": []}
    to = f"${{TMPDIR:-/tmp}}/{pod.name}"
    for _ in range(rounds):
        found["pod"].append(timed(lambda: run(["kubectl", "cp", str(file), f"{pod.name}:/data/copy"])))
        run(["kubectl", "exec", pod.name, "--", "rm", "/data/copy"])
        with file.open("rb") as data:
            found["direct"].append(timed(lambda data=data: run(pod.srun("sh", "-c", f"cat >{to}"), stdin=data)))  # type: ignore[misc]
        run(pod.srun("sh", "-c", f"rm {to}"), stdin=subprocess.DEVNULL)
    return found


def forwards(pod: Pod, rounds: int, setup: dict[str, Any]) -> dict[str, list[float]]:
    """Reading zeros through kubectl port-forward, and through a socat on this host from one on the node."""
    found: dict[str, list[float]] = {"pod": [], "direct": []}
    script = f"#!/bin/sh\n{SERVE}\n"
    argv = [
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        f"--chdir={setup['directory']}",
        f"--nodelist={setup['node']}",
    ]
    job = subprocess.run(argv, input=script, text=True, check=True, stdout=subprocess.PIPE).stdout.split(";")[0].strip()
    try:
        for _ in range(rounds):
            with port_forward(pod.name) as port:
                found["pod"].append(rate(port))
            with relay(setup["node"]) as port:
                found["direct"].append(rate(port))
    finally:
        run(["scancel", job])
    return found


@contextlib.contextmanager
def port_forward(name: str) -> Iterator[int]:
    """A local port by kubectl."""
    argv = ["kubectl", "port-forward", f"pod/{name}", f":{PORT}"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(re.findall(r"127\.0\.0\.1:(\d+)", process.stdout.readline())[0])
        finally:
            process.terminate()  # not by KILL, which `hpk kubectl` could not hand on


@contextlib.contextmanager
def relay(node: str) -> Iterator[int]:
    """A local port by socat."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    argv = ["socat", f"TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr", f"TCP:{node}:{PORT}"]
    with subprocess.Popen(argv) as process:
        try:
            yield port
        finally:
            process.kill()


def rate(port: int) -> float:
    """MiB per second that can be read from a local port, which may not listen yet."""
    deadline = time.monotonic() + probe.PATIENCE_SECONDS
    while True:
        try:
            line = socket.create_connection(("127.0.0.1", port))
            if line.recv(1):
                break
        except OSError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError("nothing comes from the port")
        time.sleep(0.1)
    with line:
        buffer, got, began = bytearray(1 << 20), 0, time.perf_counter()
        while (used := time.perf_counter() - began) < FORWARD_SECONDS:
            if not (size := line.recv_into(buffer)):
                raise RuntimeError("the port's connection has ended")
            got += size
    return got / 2**20 / used


def main() -> None:
    """Measure in alternation and print."""
    what, rounds, setup = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    directory = Path(setup["directory"])
    directory.mkdir(parents=True)
    pod = Pod(probe.Client(), setup)
    try:
        found = {
            "exec": lambda: execs(pod, rounds),
            "copy": lambda: copies(pod, rounds, directory),
            "forward": lambda: forwards(pod, rounds, setup),
        }[what]()
    finally:
        pod.delete()
    print(json.dumps(found))  # noqa: T201 - for whoever started it


if __name__ == "__main__":
    main()
