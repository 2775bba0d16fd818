"""Pods on a real Slurm: what a user of kubectl and of Slurm may rely on."""

from __future__ import annotations

import json
import re

import pytest

from tests import cluster
from tests.e2e import conftest
from tests.e2e.conftest import until

pytestmark = pytest.mark.cluster


def pod(name: str, command: list[str], **spec: object) -> str:
    """A manifest of one busybox container."""
    container = {"name": "c", "image": "${REGISTRY}/busybox:1", "command": command}
    body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container], **spec}
    annotations = body.pop("annotations", {})
    meta = {"name": name, "annotations": annotations}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})


def test_a_job_of_ten_runs_on_both_nodes(space: conftest.Namespace) -> None:
    """Ten pods at once, each a Slurm job of its own, over all compute nodes."""
    space.apply(
        """
        apiVersion: batch/v1
        kind: Job
        metadata: {name: ten}
        spec:
          completions: 10
          parallelism: 10
          template:
            spec:
              restartPolicy: Never
              containers:
              - name: c
                image: ${REGISTRY}/busybox:1
                command: [sh, -c, 'echo done; sleep 1']
                resources: {requests: {cpu: 6}}
        """
    )
    space.kubectl("wait", "job/ten", "--for=condition=Complete", "--timeout=300s")
    pods = space.pods()
    jobs = [conftest.jobs_of(one["metadata"]["uid"]) for one in pods]
    assert sorted(len(found) for found in jobs) == [1] * 10
    assert len({one["status"]["hostIP"] for one in pods}) == 2
    assert len({one["status"]["podIP"] for one in pods}) == 10


def test_a_hundred_pods_at_once_all_succeed_each_once(space: conftest.Namespace) -> None:
    """None is lost, none runs twice."""
    space.apply(
        """
        apiVersion: batch/v1
        kind: Job
        metadata: {name: hundred}
        spec:
          completions: 100
          parallelism: 100
          backoffLimit: 0
          template:
            spec:
              restartPolicy: Never
              containers: [{name: c, image: "${REGISTRY}/busybox:1", command: ["true"]}]
        """
    )
    space.kubectl("wait", "job/hundred", "--for=condition=Complete", "--timeout=500s", seconds=520)
    pods = space.pods()
    assert [one["status"]["phase"] for one in pods] == ["Succeeded"] * 100
    shown = cluster.shell("scontrol -o show job")
    assert sum(shown.count(f"Comment={one['metadata']['uid']} ") for one in pods) == 100


def test_a_cancelled_queued_job_fails_its_pod(space: conftest.Namespace) -> None:
    """Scancel of a job that waits shows as Failed with the reason."""
    space.apply(pod("held", ["true"], annotations={"slurm.hpk.io/flags": "--hold"}))
    until(lambda: "JobHeldUser" in space.get("pod", "held")["status"].get("message", ""))
    cluster.run("scancel", space.job("held"))
    until(lambda: space.phase("held") == "Failed")
    status = space.get("pod", "held")["status"]
    assert "cancelled" in status["message"]
    assert status["reason"] == "Evicted"


def test_the_queues_reason_is_in_status_and_event(space: conftest.Namespace) -> None:
    """A user sees in kubectl why the pod waits."""
    space.apply(pod("late", ["true"], annotations={"slurm.hpk.io/flags": "--begin=now+1hour"}))
    until(lambda: "BeginTime" in space.get("pod", "late")["status"].get("message", ""))
    until(lambda: re.search(r"Queued: Slurm job \d+ is PENDING: BeginTime", space.events("late")))


def test_logs_are_followed_to_the_end(space: conftest.Namespace) -> None:
    """``logs -f`` returns when the container has ended, with every line."""
    space.apply(pod("slow", ["sh", "-c", "for i in 1 2 3; do echo $i; sleep 0.5; done"]))
    until(lambda: space.phase("slow") in {"Running", "Succeeded"})
    assert space.kubectl("logs", "-f", "slow") == "1\n2\n3\n"


def test_both_spellings_of_the_flags_annotation_count(space: conftest.Namespace) -> None:
    """The older spelling is understood as well."""
    space.apply(pod("old", ["sleep", "60"], annotations={"slurm-job.hpk.io/flags": "-J 'an older  name'"}))
    until(lambda: space.phase("old") == "Running")
    assert "JobName=an older  name " in cluster.shell(f"scontrol -o show job {space.job('old')}")


def test_jobs_are_not_requeued(space: conftest.Namespace) -> None:
    """Kubernetes replaces a lost pod; Slurm must not run it as well."""
    space.apply(pod("once", ["sleep", "60"]))
    until(lambda: space.phase("once") == "Running")
    assert " Requeue=0 " in cluster.shell(f"scontrol -o show job {space.job('once')}")


def test_the_pods_directory_goes_with_the_pod(space: conftest.Namespace) -> None:
    """Nothing of a deleted pod stays, on the shared home or on the node's scratch."""
    space.apply(pod("gone", ["sh", "-c", "echo x > /file; sleep 60"], securityContext={"runAsUser": 1234}))
    until(lambda: space.phase("gone") == "Running")
    uid = space.get("pod", "gone")["metadata"]["uid"]
    space.kubectl("delete", "pod", "gone")
    until(lambda: not cluster.shell(f"ls -d ~/.hpk/pods/{uid} 2>/dev/null; true"))
    for host in ("c1", "c2"):
        until(lambda host=host: not cluster.shell(f"ls -d /tmp/hpk-{uid}* 2>/dev/null; true", host=host))  # type: ignore[misc]


def test_what_runs_survives_the_control_plane(space: conftest.Namespace) -> None:
    """The control plane ends and comes back on another host: pods run on and are adopted, objects are kept."""
    script = "i=0; while :; do i=$((i+1)); echo $i; sleep 1; done"
    space.apply(pod("through", ["sh", "-c", script]))
    until(lambda: space.phase("through") == "Running")
    job, before = space.job("through"), where()
    cluster.stop("--keep-pods")
    other = "c2" if before == "c1" else "c1"
    cluster.run(cluster.HPK, "up", "--nodelist", other, seconds=180)
    assert where() == other
    until(lambda: space.phase("through") == "Running")
    assert space.job("through") == job
    assert space.get("pod", "through")["status"]["containerStatuses"][0]["restartCount"] == 0
    count = len(space.kubectl("logs", "through").splitlines())
    until(lambda: len(space.kubectl("logs", "through").splitlines()) > count)


def where() -> str:
    """The host of the control plane's job."""
    return cluster.shell("squeue -h --me -n hpk -o %N").strip()
