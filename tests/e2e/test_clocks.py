"""A compute node whose clock is two minutes off: pods run, and what is said of them is in the cluster's own time."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.faults import clocks

if TYPE_CHECKING:
    from tests.e2e.conftest import Namespace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(500, func_only=True)]
DEADLINE_SECONDS = 60
SLACK_SECONDS = 15
POD = """
    apiVersion: v1
    kind: Pod
    metadata: {{name: {name}, annotations: {{slurm.hpk.io/flags: --nodelist=c2}}}}
    spec:
      terminationGracePeriodSeconds: 1
      {spec}
      volumes: [{{name: e, emptyDir: {{}}}}]
      containers:
      - name: c
        image: ${{REGISTRY}}/busybox:1
        command: [sh, -c, {script}]
        volumeMounts: [{{name: e, mountPath: /e}}]
"""
JOB = """
    apiVersion: batch/v1
    kind: Job
    metadata: {name: fails}
    spec:
      backoffLimit: 1
      template:
        metadata: {annotations: {slurm.hpk.io/flags: --nodelist=c2}}
        spec:
          restartPolicy: Never
          containers: [{name: c, image: "${REGISTRY}/busybox:1", command: ["false"]}]
"""


def pod(name: str, script: str, spec: str) -> str:
    """A manifest of a pod on the node whose clock is off."""
    return POD.format(name=name, script=json.dumps(script), spec=spec)


def at(text: str) -> float:
    """A time of the API server's."""
    return datetime.fromisoformat(text).timestamp()


def times(value: Any) -> list[float]:
    """All times in an object, in no order."""
    if isinstance(value, dict):
        return [time for item in value.values() for time in times(item)]
    if isinstance(value, list):
        return [time for item in value for time in times(item)]
    is_time = isinstance(value, str) and value[:2] == "20" and value[10:11] == "T" and value[-1:] == "Z"
    return [at(value)] if is_time else []


def container(space: Namespace, name: str) -> dict[str, Any]:
    """The status of the pod's container."""
    found: dict[str, Any] = space.get("pod", name)["status"]["containerStatuses"][0]
    return found


def is_ready(space: Namespace, name: str) -> bool:
    """Whether the pod is Ready."""
    conditions = space.get("pod", name).get("status", {}).get("conditions") or []
    return {"Ready": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()


@pytest.mark.parametrize("ahead", [120, -120])
def test_pods_on_a_node_whose_clock_is_off(space: Namespace, ahead: int) -> None:
    """Ready, logs, exec, restarts, a deadline, a Job's pause between its pods: all as with one clock."""
    began_at = time.time()
    with clocks.off("c2", ahead_seconds=ahead):
        again = "test -e /e/ran && exec sleep 600; touch /e/ran; sleep 1; exit 3"
        manifests = [
            pod("p", "while :; do echo tick; sleep 0.5; done", "restartPolicy: Always"),
            pod("again", again, "restartPolicy: OnFailure"),
            pod("late", "exec sleep 600", f"activeDeadlineSeconds: {DEADLINE_SECONDS}"),
            JOB,
        ]
        for manifest in manifests:
            space.apply(manifest)
        until(lambda: is_ready(space, "p") and is_ready(space, "again") and container(space, "again")["restartCount"])
        uid = space.get("pod", "p")["metadata"]["uid"]
        # Until its agent has been on the line, its clock is what it says.
        until(lambda: "clock_ahead_seconds" in cluster.shell(f"cat ~/.hpk/pods/{uid}/report.json"))
        report = json.loads(cluster.shell(f"cat ~/.hpk/pods/{uid}/report.json"))
        assert report["clock_ahead_seconds"] == pytest.approx(ahead, abs=SLACK_SECONDS)
        assert "tick" in space.kubectl("logs", "p", f"--since={SLACK_SECONDS}s")
        assert space.kubectl("exec", "p", "--", "echo", "here") == "here\n"

        now = container(space, "again")
        last = now["lastState"]["terminated"]
        assert last["exitCode"] == 3
        assert at(last["startedAt"]) <= at(last["finishedAt"]) <= at(now["state"]["running"]["startedAt"])

        until(lambda: space.phase("late") == "Failed")
        late = space.get("pod", "late")["status"]
        assert late["reason"] == "DeadlineExceeded"
        ended = late["containerStatuses"][0]["state"]["terminated"]
        assert -SLACK_SECONDS <= at(ended["finishedAt"]) - at(late["startTime"]) - DEADLINE_SECONDS < SLACK_SECONDS

        # The pause between the Job's pods is ten seconds; with a finishedAt of two minutes later it would be 130.
        until(lambda: space.get("job", "fails").get("status", {}).get("failed") == 2)
        made = [one for one in space.pods() if one["metadata"]["name"].startswith("fails-")]
        first, second = sorted(at(one["metadata"]["creationTimestamp"]) for one in made)
        assert 10 <= second - first < 110
        told = [space.get("pod", name)["status"] for name in ("p", "again", "late")]
        told += json.loads(space.kubectl("get", "events", "-o", "json"))["items"]
        # What a busy machine takes to connect an agent is all that its clock may still be off.
        first, last_moment = began_at - SLACK_SECONDS, time.time() + SLACK_SECONDS
        assert [one for one in told if any(not first <= moment <= last_moment for moment in times(one))] == []


def test_the_doctor_names_the_clock(hpk: None) -> None:
    """Of the host, and by how much."""
    with clocks.off("c2", ahead_seconds=-120):
        done = cluster.run(cluster.HPK, "doctor", "--json", code=None, seconds=180)
    told = [one for one in json.loads(done.stdout) if "its clock is" in one["what"]]
    assert told  # a line for each partition whose probe was there
    for found in told:
        assert "(c2)" in found["where"]
        assert found["level"] == "warning"
        assert "s behind the login host's" in found["what"]
