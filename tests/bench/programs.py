"""Runs on a host of the cluster as the user: the same shell command in turn as a plain job and in a pod.

    programs.py ROUNDS SETUP

SETUP is JSON: ``command`` (a line of shell), ``image``, ``node``, ``directory`` (on the shared home, for what the
command prints), ``data`` (``scratch`` or ``home``: where ``$DATA`` lies).  The plain job has no container; the pod
has ``$DATA`` as an emptyDir or a hostPath.  Both wait a second before they begin, so that the agent has started and
what is measured is a program's own speed.  Prints {"direct": [what it printed], "pod": [...]}.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.bench import probe
else:
    import probe  # beside this file, wherever both were put

MOUNT = "/data"


def script(setup: dict[str, Any], name: str) -> str:
    """The command, and its words in a file that appears whole."""
    out = f"{setup['directory']}/{name}"
    return f"sleep 1; {{ {setup['command']}; }} >{out}.new 2>&1 || echo FAILED >>{out}.new; mv {out}.new {out}"


def direct(setup: dict[str, Any], name: str) -> str:
    """A plain job; what the command printed."""
    where = {"scratch": "${TMPDIR:-/tmp}", "home": setup["directory"]}[setup["data"]]
    text = f"""#!/bin/sh
export DATA=$(mktemp -d {where}/data.XXXXXX)
{script(setup, name)}
rm -rf "$DATA"
"""
    argv = [
        "sbatch",
        "--parsable",
        f"--chdir={setup['directory']}",
        "--output=/dev/null",
        f"--nodelist={setup['node']}",
    ]
    subprocess.run([*argv, "--cpus-per-task=1", "--mem=1G"], input=text.encode(), check=True, stdout=subprocess.DEVNULL)
    return said(setup, name)


def pod(client: probe.Client, setup: dict[str, Any], name: str) -> str:
    """The same in a pod."""
    directory = setup["directory"]
    data: dict[str, Any] = {"emptyDir": {}}
    if setup["data"] == "home":
        data = {"hostPath": {"path": f"{directory}/{name}.data", "type": "DirectoryOrCreate"}}
    container = {
        "name": "c",
        "image": setup["image"],
        "command": ["sh", "-c", script(setup, name)],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
        "env": [{"name": "DATA", "value": MOUNT}],
        "volumeMounts": [{"name": "out", "mountPath": directory}, {"name": "data", "mountPath": MOUNT}],
    }
    spec = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "out", "hostPath": {"path": directory}}, {"name": "data", **data}],
    }
    meta = {"name": name, "annotations": {"slurm.hpk.io/flags": f"--nodelist={setup['node']}"}}
    client.call("POST", probe.PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    text = said(setup, name)
    probe.wait_for_end(client, name)
    client.call("DELETE", f"{probe.PODS}/{name}?gracePeriodSeconds=0")
    return text


def said(setup: dict[str, Any], name: str) -> str:
    """What the command printed, once it has ended."""
    path = Path(setup["directory"], name)
    probe.wait_for(path)
    text = path.read_text()
    if text.endswith("FAILED\n"):
        raise RuntimeError(f"{name}: {text}")
    return text


def main() -> None:
    """Measure in alternation and print."""
    rounds, setup = int(sys.argv[1]), json.loads(sys.argv[2])
    directory = Path(setup["directory"])
    directory.mkdir(parents=True)
    client = probe.Client()
    found: dict[str, list[str]] = {"direct": [], "pod": []}
    for number in range(rounds):
        found["direct"].append(direct(setup, f"direct-{number}"))
        found["pod"].append(pod(client, setup, f"{directory.name}-{number}"))
    print(json.dumps(found))  # noqa: T201 - for whoever started it


if __name__ == "__main__":
    main()
