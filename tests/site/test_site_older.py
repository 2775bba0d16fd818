"""What the profile `older` promises: the software of Debian 12, and a home whose locks end at each host."""

from __future__ import annotations

import os

import pytest

from tests.site import client

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.environ.get("SITE_PROFILE") != "older", reason="needs SITE_PROFILE=older"),
]
HOSTS = ("ctl", "c1", "c2")


def test_slurm_and_python_are_debian_12s() -> None:
    """As on a site that was set up some years ago."""
    assert client.site("status").stdout.endswith("profile older: up and healthy\n")
    assert client.out("ctl", "sinfo", "--version") == "slurm-wlm 22.05.8"
    assert client.out("c1", "python3", "--version").startswith("Python 3.11.")


def test_slurm_does_without_cgroups() -> None:
    """It follows the tree of a job's processes, and looks at their memory every now and then."""
    assert client.run("c1", "ls", "/sys/fs/cgroup/memory").returncode != 0
    eat = "python3 -c 'import time\nx = b\"x\" * 300_000_000\ntime.sleep(60)'"
    job = client.submit(eat, "--mem=100", "--nodelist=c1")
    assert client.end(job) == "FAILED"
    assert "exceeded memory limit" in client.output(job)
    said = client.out("ctl", "sacct", "-nXP", "-j", job, "--format=State,NodeList")
    assert said in {"FAILED|c1", "RUNNING|c1"}  # the database hears of it later


@pytest.mark.parametrize("host", HOSTS)
def test_users_have_subordinate_ids_and_no_pod_network(host: str) -> None:
    """Apptainer is setuid, and no CNI network is set up."""
    assert client.out(host, "unshare", "--map-auto", "--map-root-user", "--user", "id", "-u") == "0"
    assert client.run(host, "test", "-u", "/usr/libexec/apptainer/bin/starter-suid").returncode == 0
    assert client.run(host, "test", "-e", "/etc/apptainer/network").returncode == 1


LOCK = """
import fcntl, time
with open("locked", "w") as file:
    for lock in (fcntl.flock, fcntl.lockf):
        lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
"""


def test_a_lock_binds_its_own_host_only() -> None:
    """Two hosts lock one file of the home at a time; two processes of one host do not."""
    with client.started("c1", "python3", "-c", f"{LOCK}    time.sleep(600)") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        assert client.out("c2", "python3", "-c", LOCK) == "locked"
        assert "BlockingIOError" in client.run("c1", "python3", "-c", LOCK).stderr
