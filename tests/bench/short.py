"""Runs on a host of the cluster as the user: some short jobs, or as many short pods, from submission to the last end.

Standard library only, and yaml (of probe.py).

    short.py direct COUNT SIF DIRECTORY       prints the CPU seconds of the sbatch commands
    short.py pods COUNT IMAGE DIRECTORY       prints 0: the pods' sbatch commands are the gateway's
"""

from __future__ import annotations

import datetime as dt
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

JOBS = "/apis/batch/v1/namespaces/default/jobs"
PATIENCE_SECONDS = 300.0


def main() -> None:
    """Do it and print."""
    kind, count, image, where = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    directory = where / dt.datetime.now(tz=dt.UTC).strftime("%H%M%S%f")
    directory.mkdir(parents=True)
    if kind == "direct":
        direct(count, image, directory)
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(spent.ru_utime + spent.ru_stime)  # noqa: T201
    else:
        pods(count, image)
        print(0)  # noqa: T201


def direct(count: int, sif: str, directory: Path) -> None:
    """Plain jobs; each leaves a file."""
    for number in range(count):
        script = f"#!/bin/bash\napptainer exec -B {directory} {sif} touch {directory}/{number}\n"
        argv = ["sbatch", "--parsable", f"--chdir={directory}", "--output=/dev/null"]
        subprocess.run(argv, input=script.encode(), check=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(directory.iterdir())) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("not all jobs have ended")
        time.sleep(0.2)


def pods(count: int, image: str) -> None:
    """The same as pods of one Job, which is removed again."""
    import probe  # type: ignore[import-not-found] # noqa: PLC0415 - beside this file on the host

    client = probe.Client()
    container = {"name": "c", "image": image, "command": ["touch", "/done"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    spec: dict[str, Any] = {"completions": count, "parallelism": count, "backoffLimit": 0, "template": template}
    name = f"short-{time.time_ns()}"
    client.call("POST", JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    deadline = time.monotonic() + PATIENCE_SECONDS
    while client.call("GET", f"{JOBS}/{name}")["status"].get("succeeded", 0) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("not all pods have ended")
        time.sleep(0.2)
    client.call("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")


if __name__ == "__main__":
    main()
