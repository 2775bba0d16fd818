"""How pods end where something is in the way: signals of the user's, a link that is cut, a home that is full."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.faults import pods

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e import conftest

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("hpk")]


def job_of(space: conftest.Namespace, name: str) -> str:
    """The number of the pod's Slurm job."""
    uid = space.get("pod", name)["metadata"]["uid"]
    return str(json.loads(cluster.shell(f"cat .hpk/pods/{uid}/job.json"))["job_id"])


def logs(space: conftest.Namespace, name: str) -> str:
    """Return what the pod's container has written, nothing while it has not started."""
    return space.kubectl("logs", name, code=None)


def test_a_signal_of_the_user_s_reaches_the_container_and_nothing_else_does(space: conftest.Namespace) -> None:
    """--signal in the flags, by Slurm's early warning and by scancel; other signals change nothing."""
    script = "trap 'echo usr1' USR1; trap 'echo usr2' USR2; echo up; while :; do sleep 0.1; done"
    space.apply(pods.pod("p", script, flags="--signal=B:USR1@600 --time=60"))
    until(lambda: logs(space, "p") == "up\n")
    job = job_of(space, "p")
    cluster.run("scancel", "--batch", "--signal=USR2", job)
    cluster.run("scancel", "--batch", "--signal=HUP", job)
    cluster.run("scancel", "--batch", "--signal=USR1", job)
    until(lambda: logs(space, "p") == "up\nusr1\n")
    cluster.run("scancel", "--batch", "--signal=50", job)  # as Slurm sends it before the time limit
    until(lambda: logs(space, "p") == "up\nusr1\nusr1\n")
    assert space.phase("p") == "Running"
    cluster.run("scancel", job)
    assert pods.ended(space, "p") == "Failed"


@contextlib.contextmanager
def cut_off(host: str) -> Iterator[None]:
    """While the block lasts, no agent of the host reaches the kubelet."""
    port = json.loads(cluster.shell("cat .hpk/run/endpoint.json"))["port"]
    rules = f"""table inet cut {{
        chain forward {{ type filter hook forward priority -10; tcp dport {port} reject with tcp reset; }}
        chain output {{ type filter hook output priority -10; tcp dport {port} reject with tcp reset; }}
    }}"""
    cluster.run("nft", "-f", "-", user="root", host=host, stdin=rules.encode())
    try:
        yield
    finally:
        cluster.run("nft", "delete", "table", "inet", "cut", user="root", host=host)


def test_a_deleted_pod_keeps_its_grace_though_its_agent_is_cut_off(space: conftest.Namespace) -> None:
    """Longer than Slurm's KillWait: the container ends as it likes, and so its pod's status says."""
    script = "trap 'echo term; sleep 12; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    space.apply(pods.pod("p", script, terminationGracePeriodSeconds=60))
    space.kubectl("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"finalizers":["example.org/hold"]}}')
    try:
        until(lambda: logs(space, "p") == "up\n")
        with cut_off(pods.host_of(job_of(space, "p"))):
            space.kubectl("delete", "pod", "p", "--wait=false")
            assert pods.ended(space, "p") == "Failed"
        status = space.get("pod", "p")["status"]
        assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 7
    finally:
        space.kubectl("patch", "pod", "p", "--type=merge", "-p", '{"metadata":{"finalizers":null}}')


def test_a_pod_whose_time_limit_is_a_minute_has_its_grace(space: conftest.Namespace) -> None:
    """Longer than Slurm's KillWait: it is ended when half of the minute is over."""
    script = "trap 'echo term; sleep 14; echo done; exit 7' TERM; echo up; while :; do sleep 0.1; done"
    space.apply(pods.pod("p", script, flags="--time=1", terminationGracePeriodSeconds=20))
    assert pods.ended(space, "p") == "Failed"
    status = space.get("pod", "p")["status"]
    assert (status["reason"], status["containerStatuses"][0]["state"]["terminated"]["exitCode"]) == ("Evicted", 7)
    assert logs(space, "p") == "up\nterm\ndone\n"
