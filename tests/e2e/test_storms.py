"""Slurm's controller stays cool, whatever users apply: counted by sdiag."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e import conftest

pytestmark = pytest.mark.cluster

WATCH_SECONDS = 90


def deployment(name: str, *, replicas: int, flags: str, command: list[str]) -> str:
    """A manifest of busybox pods, ten of which fit on a node many times."""
    container = {
        "name": "c",
        "image": "${REGISTRY}/busybox:1",
        "command": command,
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}},
    }
    pod = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    meta = {"labels": {"app": name}, "annotations": {"slurm.hpk.io/flags": flags}}
    spec = {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": meta, "spec": pod},
    }
    return json.dumps({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec})


def calls(*, message: str = "", user: str = "") -> int:
    """How many calls slurmctld has had, of this kind or from this user."""
    found = re.search(rf"^\s+{message or user}\s.*count:(\d+)", cluster.shell("sdiag", user="root"), re.MULTILINE)
    return int(found[1]) if found else 0


def submissions() -> int:
    """How often sbatch has reached slurmctld."""
    return calls(message="REQUEST_SUBMIT_BATCH_JOB")


def test_a_pod_that_cannot_be_given_is_refused_by_apply(space: conftest.Namespace) -> None:
    """Kubectl prints the reason, and there is no pod."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"hostPID": True, "containers": [{"name": "c", "image": "i"}]},
    }
    done = cluster.run(*cluster.KUBECTL, "-n", space.name, "apply", "-f", "-", stdin=json.dumps(pod).encode(), code=1)
    assert b"denied the request: spec.hostPID is not supported" in done.stderr
    assert not space.pods()


def test_fifty_replicas_of_a_wrong_partition_reach_sbatch_hardly_ever(space: conftest.Namespace) -> None:
    """Who applies the Deployment is warned, its ReplicaSet backs off, and slurmctld hears nothing of it."""
    before = submissions()
    manifest = deployment("wrong", replicas=50, flags="--partition=nosuch", command=["true"])
    text = manifest.replace("${REGISTRY}", cluster.REGISTRY).encode()
    done = cluster.run(*cluster.KUBECTL, "-n", space.name, "apply", "-f", "-", stdin=text)
    assert b"Warning: pods of this Deployment will be refused: invalid partition specified: nosuch" in done.stderr
    until(lambda: "denied the request: invalid partition specified: nosuch" in space.kubectl("get", "events"))
    time.sleep(10)
    assert submissions() - before <= 5
    assert len(space.pods()) <= 5


def test_fifty_replicas_that_sbatch_refuses_make_few_calls(space: conftest.Namespace) -> None:
    """What only sbatch can know: one replica asks; the others wait, and those that are not there yet are denied."""
    before = submissions()
    space.apply(deployment("refused", replicas=50, flags="--reservation=nosuch", command=["true"]))
    until(lambda: "SubmitFailed" in space.kubectl("get", "events"))
    time.sleep(15)
    assert submissions() - before <= 5
    phases = [pod["status"].get("phase") for pod in space.pods()]
    assert phases.count("Failed") <= 5
    assert set(phases) <= {"Pending", "Failed"}
    assert "denied the request: sbatch: error" in space.kubectl("get", "events")


def test_fifty_pods_under_a_submit_limit_all_run_in_the_end(space: conftest.Namespace) -> None:
    """The site takes five jobs at a time, the control plane's own included."""
    if "limits" not in cluster.shell("scontrol show config | grep AccountingStorageEnforce"):
        pytest.skip("this profile enforces no limits")
    cluster.shell("sacctmgr -i modify user alice set maxsubmitjobs=5", user="root")
    try:
        before = submissions()
        space.apply(
            """
            apiVersion: batch/v1
            kind: Job
            metadata: {name: many}
            spec:
              completions: 50
              parallelism: 50
              template:
                spec:
                  restartPolicy: Never
                  containers: [{name: c, image: "${REGISTRY}/busybox:1", command: [sleep, "1"]}]
            """
        )
        space.kubectl("wait", "job/many", "--for=condition=Complete", "--timeout=400s", seconds=420)
        assert submissions() - before <= 150
        assert [pod["status"]["phase"] for pod in space.pods()] == ["Succeeded"] * 50
    finally:
        cluster.shell("sacctmgr -i modify user alice set maxsubmitjobs=-1", user="root")


def test_at_rest_slurmctld_hears_at_most_one_call_in_fifteen_seconds(space: conftest.Namespace) -> None:
    """Twenty pods run, nothing changes: counted per user, by slurmctld itself."""
    space.apply(deployment("calm", replicas=20, flags="", command=["sleep", "3600"]))
    until(lambda: [pod["status"]["phase"] for pod in space.pods()] == ["Running"] * 20, seconds=120)
    time.sleep(45)  # the questions of the start have their answers
    before = calls(user="alice")
    time.sleep(WATCH_SECONDS)
    assert calls(user="alice") - before <= WATCH_SECONDS / 15
