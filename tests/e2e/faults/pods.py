"""Manifests of pods, and what is found of them afterwards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests import cluster
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e import conftest

COUNTS = "/home/alice/faults"
"""On the shared home: a file for each pod that was run, with a line for each time."""


def pod(name: str, script: str = "true", *, flags: str = "", image: str = "${REGISTRY}/busybox:1", **spec: Any) -> str:
    """A manifest of one container that runs a line of shell; ``container`` holds more of its fields."""
    container = {"name": "c", "image": image, "command": ["sh", "-c", script], **spec.pop("container", {})}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **spec}
    meta = {"name": name, "annotations": {"slurm.hpk.io/flags": flags} if flags else {}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})


def counted(name: str, script: str = "true", **fields: Any) -> str:
    """A pod whose every run is counted."""
    volume = {"name": "counts", "hostPath": {"path": COUNTS}}
    container = {"volumeMounts": [{"name": "counts", "mountPath": "/counts"}], **fields.pop("container", {})}
    line = f"echo ran >> /counts/{name}; {script}"
    return pod(name, line, volumes=[volume], container=container, **fields)


def released(script: str) -> str:
    """A counted pod's line of shell that begins when the test says so."""
    return f"until test -e /counts/go; do sleep 0.2; done; {script}"


def release() -> None:
    """Let them begin."""
    cluster.shell(f"touch {COUNTS}/go")


def runs(name: str) -> int:
    """How often the pod's container has been run."""
    return len(cluster.shell(f"cat {COUNTS}/{name} 2>/dev/null; true").splitlines())


def refusal(space: conftest.Namespace, manifest: str) -> str:
    """What ``kubectl apply`` says; empty if it takes the pod."""
    text = manifest.replace("${REGISTRY}", cluster.REGISTRY).encode()
    done = cluster.run("kubectl", "-n", space.name, "apply", "-f", "-", stdin=text, code=None)
    return done.stderr.decode() if done.returncode else ""


def words(space: conftest.Namespace, name: str) -> str:
    """All that kubectl describe would say of a pod's trouble: status, containers, events."""
    found = space.get("pod", name).get("status", {})
    states = [one.get("state", {}) for one in found.get("containerStatuses", [])]
    return f"{found.get('phase')} {found.get('reason')}: {found.get('message')}\n{states}\n{space.events(name)}"


def ended(space: conftest.Namespace, name: str, *, seconds: float = 180) -> str:
    """The pod's final phase."""
    until(lambda: space.phase(name) in {"Succeeded", "Failed"}, seconds=seconds)
    return space.phase(name)


def plain_pod_runs(space: conftest.Namespace, name: str, *, seconds: float = 180) -> None:
    """A pod without any fault comes to its good end."""
    space.apply(pod(name, "echo alive"))
    assert ended(space, name, seconds=seconds) == "Succeeded", words(space, name)
    assert space.kubectl("logs", name) == "alive\n"


def kill(pattern: str, *, host: str, signal: str = "KILL") -> None:
    """Send a signal to the processes of a host whose command line matches; an error if there is none.

    Those that are killed are gone when this returns.
    """
    found = cluster.run("pgrep", "-d", " ", "-f", pattern, host=host, user="root").stdout.decode().strip()
    cluster.shell(f"kill -{signal} {found}", host=host, user="root")
    if signal == "KILL":
        until(lambda: not cluster.shell(f"ps -o stat= -p '{found}' | grep -v Z; true", host=host, user="root"))


def host_of(job: str) -> str:
    """Where a job runs."""
    return cluster.shell(f"squeue -h -j {job} -o %N").strip()


def state_of(job: str) -> str:
    """Slurm's word for the job's state."""
    return cluster.shell(f"squeue -h -t all -j {job} -o %T").strip()
