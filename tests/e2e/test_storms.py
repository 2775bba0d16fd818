"""Slurm's controller stays cool, whatever users apply: counted by sdiag."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e import storms
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e import conftest

pytestmark = pytest.mark.cluster

WATCH_SECONDS = 60


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
    before = storms.submissions()
    manifest = deployment("wrong", replicas=50, flags="--partition=nosuch", command=["true"])
    text = manifest.replace("${REGISTRY}", cluster.REGISTRY).encode()
    done = cluster.run(*cluster.KUBECTL, "-n", space.name, "apply", "-f", "-", stdin=text)
    assert b"Warning: pods of this Deployment will be refused: invalid partition specified: nosuch" in done.stderr
    until(lambda: "denied the request: invalid partition specified: nosuch" in space.kubectl("get", "events"))
    time.sleep(10)
    assert storms.submissions() - before <= 5
    assert len(space.pods()) <= 5


def test_fifty_replicas_that_sbatch_refuses_make_few_calls(space: conftest.Namespace) -> None:
    """What only sbatch can know: one replica asks; the others wait, and those that are not there yet are denied."""
    before = storms.submissions()
    space.apply(deployment("refused", replicas=50, flags="--reservation=nosuch", command=["true"]))
    until(lambda: "SubmitFailed" in space.kubectl("get", "events"))
    time.sleep(15)
    assert storms.submissions() - before <= 5
    phases = [pod["status"].get("phase") for pod in space.pods()]
    assert phases.count("Failed") <= 5
    assert set(phases) <= {"Pending", "Failed"}
    assert "denied the request: sbatch: error" in space.kubectl("get", "events")


def test_pods_beyond_a_submit_limit_of_slurmdbd_all_run_in_the_end(space: conftest.Namespace) -> None:
    """The site takes five jobs at a time, the control plane's own included; on the bare site it is a plugin's limit."""
    cluster.shell("sacctmgr -i modify user alice set maxsubmitjobs=5", user="root")
    try:
        storms.all_succeed(space, pods=12)
    finally:
        cluster.shell("sacctmgr -i modify user alice set maxsubmitjobs=-1", user="root")


def test_at_rest_slurmctld_hears_at_most_one_call_in_fifteen_seconds(space: conftest.Namespace) -> None:
    """Twenty pods run, nothing changes: counted per user, by slurmctld itself."""
    space.apply(deployment("calm", replicas=20, flags="", command=["sleep", "3600"]))
    until(lambda: [pod["status"]["phase"] for pod in space.pods()] == ["Running"] * 20, seconds=120)
    time.sleep(45)  # the questions of the start have their answers
    asked = storms.calls(user="alice")
    until(lambda: storms.calls(user="alice") > asked, seconds=120)
    time.sleep(5)  # it has been asked just now: the same minute for every run
    before = storms.calls(user="alice")
    time.sleep(WATCH_SECONDS)
    assert storms.calls(user="alice") - before <= WATCH_SECONDS / 15
