"""What breaks under running pods: jobs, nodes, slurmctld, agent, gateway, kubelet, API server.

Each test breaks one thing (or several that need not wait for each other), and in the end a plain pod runs.
See docs/faults.md for the whole table.
"""

from __future__ import annotations

import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.faults import pods
from tests.e2e.test_pods import where

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e import conftest

pytestmark = [pytest.mark.cluster, pytest.mark.destructive, pytest.mark.timeout(600)]

AWAY_SECONDS = 30
SLURM_STATE = "/var/spool/slurm/ctld/job_state"
API_AWAY_SECONDS = 60
STUBBORN = "trap '' TERM; while :; do sleep 1; done"
ENDLESS = "trap exit TERM; while :; do sleep 0.2; done"


@pytest.fixture(autouse=True)
def whole() -> Iterator[None]:
    """The cluster is whole again afterwards."""
    cluster.shell(f"mkdir -p {pods.COUNTS}; rm -f {pods.COUNTS}/*")
    yield
    subprocess.run([str(cluster.SITE), "up"], check=True, capture_output=True)
    for host in ("c1", "c2"):
        cluster.run("scontrol", "update", f"nodename={host}", "state=resume", user="root", code=None)


def other() -> str:
    """The compute node that does not carry the control plane."""
    return "c2" if where() == "c1" else "c1"


def running(space: conftest.Namespace, *names: str) -> dict[str, str]:
    """Wait until these pods run; their jobs."""
    until(lambda: all(space.phase(name) == "Running" for name in names))
    return {name: space.job(name) for name in names}


def lasting(holds: Callable[[], bool], *, seconds: float) -> None:
    """See that it holds all the time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert holds()
        time.sleep(1)


def test_what_happens_to_a_job_is_told_by_its_pod(space: conftest.Namespace) -> None:
    """Its agent is killed, all of it is killed, an administrator requeues it: Failed with the reason, run once."""
    names = ("agent", "all", "requeued")
    for name in names:
        space.apply(pods.counted(name, ENDLESS, restartPolicy="Always", flags=f"--nodelist={other()}"))
    jobs, host = running(space, *names), other()
    uid = space.get("pod", "all")["metadata"]["uid"]
    pods.kill(f"agent/__main__.py.*job_id={jobs['agent']} ", host=host)
    cluster.run("scancel", "--full", "--signal=KILL", jobs["all"])
    cluster.run("scontrol", "update", f"jobid={jobs['requeued']}", "requeue=1", user="root")
    cluster.run("scontrol", "requeue", jobs["requeued"], user="root")
    for name in names:
        assert pods.ended(space, name) == "Failed"
        status = space.get("pod", name)["status"]
        assert status["reason"] in {"ContainerStatusUnknown", "Evicted"}, status
        assert f"Slurm job {jobs[name]} " in status["message"]
        assert pods.runs(name) == 1
    assert "was requeued" in space.get("pod", "requeued")["status"]["message"]
    until(lambda: pods.state_of(jobs["requeued"]) in {"CANCELLED", ""})
    # What the killed job has left on the node's disk goes with a later job of the same user.
    pods.plain_pod_runs(space, "plain")
    space.apply(pods.pod("sweeper", flags=f"--nodelist={host}"))
    assert pods.ended(space, "sweeper") == "Succeeded"
    until(lambda: not cluster.shell(f"ls -d /tmp/hpk-{uid}* 2>/dev/null; true", host=host))


def test_slurmctld_is_away_for_half_a_minute(space: conftest.Namespace) -> None:
    """What runs runs on, what ends is told, what is new waits; nothing is lost."""
    space.apply(pods.counted("through", ENDLESS, restartPolicy="Always"))
    space.apply(pods.counted("ends", pods.released("exit 3")))
    jobs = running(space, "through", "ends")
    # It writes jobs down some seconds late, and has those killed that it cannot remember.  These may have been written
    # down by now, and nothing more would be without another change.
    began = float(cluster.shell("date +%s.%N"))
    cluster.run("scontrol", "update", f"jobid={jobs['through']}", "admincomment=seen", user="root")
    until(lambda: float(cluster.shell(f"stat -c %.9Y {SLURM_STATE}", user="root")) > began)
    cluster.run("pkill", "-KILL", "-x", "slurmctld", user="root")
    away = time.monotonic()
    pods.release()
    space.apply(pods.counted("new", "sleep 1"))
    assert pods.ended(space, "ends") == "Failed"
    (one,) = space.get("pod", "ends")["status"]["containerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 3
    until(lambda: "FailedSubmit: Cannot submit yet, will try again" in space.events("new"))
    lasting(lambda: space.phase("new") == "Pending", seconds=AWAY_SECONDS - (time.monotonic() - away))
    subprocess.run([str(cluster.SITE), "up"], check=True, capture_output=True)
    assert pods.ended(space, "new") == "Succeeded"
    assert space.phase("through") == "Running"
    assert space.job("through") == jobs["through"]
    assert [pods.runs(name) for name in ("through", "ends", "new")] == [1, 1, 1]
    pods.plain_pod_runs(space, "plain")


def test_a_node_is_drained_loses_its_slurmd_and_reboots(space: conftest.Namespace) -> None:
    """Drained: what runs stays, what is new waits and says why.  Lost: Failed, and nothing of it runs on."""
    host = other()
    flags = f"--nodelist={host}"
    space.apply(pods.counted("there", ENDLESS, restartPolicy="Always", flags=flags))
    jobs = running(space, "there")
    cluster.run("scontrol", "update", f"nodename={host}", "state=drain", "reason=test", user="root")
    space.apply(pods.counted("drained", ENDLESS, restartPolicy="Always", flags=flags))
    until(lambda: "is PENDING: " in space.get("pod", "drained")["status"].get("message", ""))
    pods.plain_pod_runs(space, "elsewhere")
    assert space.phase("there") == "Running"
    cluster.run("scontrol", "update", f"nodename={host}", "state=resume", user="root")
    running(space, "drained")

    # The node's slurmd dies: Slurm gives its jobs up, though their processes run on.  Slurm takes up to SlurmdTimeout
    # and a ping to notice; the agent is still there, so the kubelet learns of it by its next squeue, at rest a minute.
    cluster.run("pkill", "-KILL", "-x", "slurmd", host=host, user="root")
    assert pods.ended(space, "there", seconds=150) == "Failed"
    status = space.get("pod", "there")["status"]
    assert status["reason"] == "Evicted"
    assert f"Slurm job {jobs['there']} was lost: its compute node failed" in status["message"]
    left = f"pgrep -f '[a]gent/__main__.py.*job_id={jobs['there']} '; true"
    until(lambda: cluster.shell(left, host=host, user="root") == "")
    subprocess.run([str(cluster.SITE), "up"], check=True, capture_output=True)

    # The node loses its power.  (One that is back before Slurm misses it is said to run its job for as long as Slurm
    # waits for jobs to begin: no real node starts so quickly.)
    space.apply(pods.counted("rebooted", ENDLESS, restartPolicy="Always", flags=flags))
    running(space, "rebooted")
    subprocess.run([str(cluster.SITE), "kill", host], check=True, capture_output=True)
    assert pods.ended(space, "rebooted", seconds=150) == "Failed"
    assert space.get("pod", "rebooted")["status"]["reason"] in {"Evicted", "ContainerStatusUnknown"}
    subprocess.run([str(cluster.SITE), "up"], check=True, capture_output=True)
    assert [pods.runs(name) for name in ("there", "drained", "rebooted")] == [1, 1, 1]
    space.apply(pods.pod("plain", flags=flags))
    assert pods.ended(space, "plain") == "Succeeded"


def test_the_gateway_is_killed(space: conftest.Namespace) -> None:
    """It is started again; nobody notices but the log."""
    space.apply(pods.counted("through", ENDLESS, restartPolicy="Always"))
    running(space, "through")
    pods.kill("host.pyz gateway", host=where())
    pods.plain_pod_runs(space, "plain")
    assert space.phase("through") == "Running"
    assert pods.runs("through") == 1


def test_the_kubelet_is_killed_in_each_stage_of_a_pods_path(space: conftest.Namespace) -> None:
    """It is started again in its job; every pod goes on from where it was, and none runs twice."""
    space.apply(pods.counted("runs", ENDLESS, restartPolicy="Always"))
    space.apply(pods.counted("ending", STUBBORN, terminationGracePeriodSeconds=6))
    space.apply(pods.counted("queued", flags="--begin=now+20"))
    space.apply(pods.counted("finishes", pods.released("sleep 1; exit 7")))
    jobs = running(space, "runs", "ending", "finishes")
    until(lambda: "Submitted" in space.events("queued"))
    space.kubectl("delete", "pod", "ending", "--wait=false")
    stages = [f"stage-{number}" for number in range(8)]
    for name in stages[:4]:
        space.apply(pods.counted(name, "sleep 2"))
    text = "\n---\n".join(pods.counted(name, "sleep 2") for name in stages[4:])
    space.apply(text)  # these are just being bound, prepared and submitted
    host, api = where(), "[/]opt/hpk/bin/kube-apiserver"
    old = cluster.shell(f"pgrep -f {api}", host=host, user="root").strip()
    pods.release()
    pods.kill("^/usr/bin/python3.13 -IS /opt/hpk/bin/hpk serve", host=host, signal="SEGV")
    until(lambda: old not in cluster.shell(f"pgrep -f {api}; true", host=host, user="root").split())  # it dies with it
    until(cluster.is_running)
    assert where() == host
    for name in ("queued", *stages):
        assert pods.ended(space, name) == "Succeeded", pods.words(space, name)
        assert pods.runs(name) == 1
    assert pods.ended(space, "finishes") == "Failed"
    (one,) = space.get("pod", "finishes")["status"]["containerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 7
    assert (space.phase("runs"), space.job("runs"), pods.runs("runs")) == ("Running", jobs["runs"], 1)
    until(lambda: not space.get("pod", "ending"))
    until(lambda: pods.state_of(jobs["ending"]) not in {"RUNNING", "COMPLETING"})
    pods.plain_pod_runs(space, "plain")


def test_the_api_server_is_away_for_a_minute(space: conftest.Namespace) -> None:
    """Nothing of the pods stops, and what ended meanwhile is told when it is back."""
    space.apply(pods.counted("through", ENDLESS, restartPolicy="Always"))
    space.apply(pods.counted("ends", pods.released("exit 3")))
    space.apply(pods.counted("queued", flags="--begin=now+20"))
    jobs, host = running(space, "through", "ends"), where()
    until(lambda: "Submitted" in space.events("queued"))
    pods.kill("/opt/hpk/bin/kube-apiserver", host=host, signal="STOP")
    pods.release()
    try:
        done = cluster.run("kubectl", "get", "pods", "--request-timeout=5s", code=None)
        assert done.returncode
        assert b"Unable to connect to the server" in done.stderr
        time.sleep(API_AWAY_SECONDS - 5)
    finally:
        pods.kill("/opt/hpk/bin/kube-apiserver", host=host, signal="CONT")
    until(cluster.is_running)
    assert pods.ended(space, "ends") == "Failed"
    (one,) = space.get("pod", "ends")["status"]["containerStatuses"]
    assert one["state"]["terminated"]["exitCode"] == 3
    assert pods.ended(space, "queued") == "Succeeded"
    assert (space.phase("through"), space.job("through")) == ("Running", jobs["through"])
    assert [pods.runs(name) for name in ("through", "ends", "queued")] == [1, 1, 1]
    pods.plain_pod_runs(space, "plain")


def test_kubectl_against_a_control_plane_that_has_ended(space: conftest.Namespace) -> None:
    """It says that nobody is there, `hpk status` says what to do, and the next start has everything."""
    space.apply(pods.pod("kept", ENDLESS))
    running(space, "kept")
    cluster.run("scancel", "--full", "--signal=KILL", "--name=hpk", "--me")
    until(lambda: where() == "")
    done = cluster.run("kubectl", "get", "pods", code=None)
    assert done.returncode == 1
    assert b"refused" in done.stderr
    assert "not running (hpk up starts it)" in cluster.shell(f"{cluster.HPK} status", code=3)
    cluster.start()
    assert space.phase("kept") == "Running"
    pods.plain_pod_runs(space, "plain")
