"""Which Slurm job is a pod's, and what becomes of those that are no pod's: on a real Slurm."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e import conftest

pytestmark = pytest.mark.cluster

PODS = "/home/alice/.hpk/pods"


def pod(name: str, *, flags: str = "", command: tuple[str, ...] = ("sleep", "600")) -> dict[str, Any]:
    """A small pod with these flags."""
    limits = {"cpu": "1", "memory": "64Mi"}
    container = {"name": "c", "image": "${REGISTRY}/busybox:1", "command": command, "resources": {"limits": limits}}
    meta = {"name": name, "annotations": {"slurm.hpk.io/flags": flags}}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def held(directory: str, *, comment: str = "") -> str:
    """A job of alice's own that waits for ever; its number."""
    limits = "--account=research --time=5" if cluster.PROFILE.strict else ""
    options = f"--parsable --hold {limits} --chdir={directory} --output=/dev/null --comment={shlex.quote(comment)}"
    return cluster.shell(f"printf '#!/bin/sh\nsleep 600\n' | sbatch {options}").strip()


def state(job: str) -> str:
    """Slurm's word for a job."""
    return cluster.shell(f"squeue --noheader --states=all --jobs={job} --format=%T").strip()


def test_what_a_pods_flags_set_replaces_what_hpk_derives(space: conftest.Namespace) -> None:
    """Sbatch takes one way to ask for memory; and no name or comment holds what parts squeue's fields."""
    space.apply(json.dumps(pod("p", flags="--mem-per-cpu=300M --nodes=1 --ntasks-per-node=1", command=("true",))))
    bad = json.dumps(pod("bad", flags="--comment='a\x1eb'"))
    done = cluster.run(*cluster.KUBECTL, "-n", space.name, "apply", "-f", "-", stdin=bad.encode(), code=1)
    assert b"control character" in done.stderr
    until(lambda: space.phase("p") == "Succeeded")


def test_jobs_that_are_no_pods_are_ended_and_those_of_others_are_not(space: conftest.Namespace) -> None:
    """A lost answer's job beside the pod's, and one whose pod is gone; a comment tells of no other job."""
    space.apply(json.dumps(pod("p")))
    until(lambda: space.phase("p") == "Running")
    uid, mine = space.get("pod", "p")["metadata"]["uid"], space.job("p")
    forged = "\x1f".join([mine, "CANCELLED", "None", "", "main", "5", "6", f"{PODS}/{uid}", "(null)", "n", uid])
    foreign = held("/home/alice", comment=f"x\x1e\n{forged}\x1e\n")
    beside = held(f"{PODS}/{uid}", comment=uid)
    until(lambda: state(beside) == "CANCELLED")
    assert space.phase("p") == "Running"
    space.kubectl("delete", "pod", "p", "--wait=true")
    until(lambda: cluster.run("test", "-e", f"{PODS}/{uid}", code=None).returncode)
    late = held(f"{PODS}/{uid}", comment=uid)
    until(lambda: state(late) == "CANCELLED")
    assert state(foreign) == "PENDING"
    cluster.shell(f"scancel {foreign}")


def test_a_script_that_slurm_cannot_start_is_explained(space: conftest.Namespace) -> None:
    """Exit code 0:53, in words."""
    space.apply(json.dumps(pod("p", flags="--hold")))
    until(lambda: "is PENDING" in str(space.get("pod", "p").get("status", {}).get("message")))
    uid, job = space.get("pod", "p")["metadata"]["uid"], space.job("p")
    cluster.shell(f"mkdir {PODS}/{uid}/job.out && scontrol release {job}")
    until(lambda: space.phase("p") == "Failed")
    message = space.get("pod", "p")["status"]["message"]
    assert f"Slurm job {job} ended (FAILED, exit code 0:53" in message
    assert "could not start its script on c" in message
