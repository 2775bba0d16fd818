"""What the profile `bare` promises: a site that prepared nothing for pods (SITE_PROFILE=bare)."""

from __future__ import annotations

import os

import pytest

from tests.site import client

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(os.environ.get("SITE_PROFILE") != "bare", reason="needs SITE_PROFILE=bare"),
]
FLAGS = ("--account=research", "--time=5")
HOSTS = ("ctl", "c1", "c2")


def test_status_names_the_profile() -> None:
    """A person sees which kind of site runs."""
    assert client.site("status").stdout.endswith("profile bare: up and healthy\n")


@pytest.mark.parametrize("host", HOSTS)
def test_apptainer_is_as_packaged(host: str) -> None:
    """No setuid starter and no CNI: only what user namespaces allow."""
    assert client.run(host, "test", "-e", "/usr/libexec/apptainer/bin/starter-suid").returncode == 1
    assert client.run(host, "test", "-e", "/etc/apptainer/network").returncode == 1
    client.out(host, "apptainer", "--version")


@pytest.mark.parametrize("host", HOSTS)
def test_nobody_has_subordinate_ids(host: str) -> None:
    """The files are there, and empty."""
    assert client.out(host, "cat", "/etc/subuid", "/etc/subgid") == ""
    assert client.run(host, "unshare", "--map-auto", "--user", "true").returncode != 0


def test_there_is_no_accounting() -> None:
    """Sacct has nothing to say, and no database runs."""
    assert client.run("ctl", "sacct").returncode != 0
    assert client.run("ctl", "pgrep", "-x", "slurmdbd|mariadbd").returncode == 1


@pytest.mark.parametrize("host", HOSTS)
def test_there_is_no_pod_network(host: str) -> None:
    """Nothing of Flannel is on the hosts."""
    assert client.run(host, "test", "-e", "/run/flannel").returncode == 1
    assert "flannel" not in client.out(host, "ip", "link")


POOR = """
import errno, fcntl, os, sys, time
with open("poor", "w") as file:
    began = time.monotonic()
    os.fsync(file.fileno())
    print("fsync", time.monotonic() - began > 0.005)
    for name, lock in (("flock", fcntl.flock), ("lockf", fcntl.lockf)):
        try:
            lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            print(name, errno.errorcode[error.errno])
    try:
        os.chown("poor", 100000, -1)
    except OSError as error:
        print("chown", errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("host", HOSTS)
def test_the_home_refuses_what_nfs_and_lustre_refuse(host: str) -> None:
    """No locks, no chown to another id, an fsync of its own pace; who it belongs to is kept."""
    said = client.out(host, "python3", "-c", POOR)
    assert said == "fsync True\nflock ENOSYS\nlockf ENOSYS\nchown EPERM"
    assert client.out(host, "stat", "-c", "%U", "poor") == "alice"
    assert client.run(host, "ls", "/srv/home").returncode != 0  # no way around it


def test_hosts_share_the_home_and_see_changes_a_moment_later() -> None:
    """What one host writes another reads, as soon as what it remembers of the file is a second old."""
    for text in ("one", "two"):
        client.out("c1", "sh", "-c", f"echo {text} >note")
        client.eventually(lambda text=text: client.out("c2", "cat", "note") == text, what="the note")  # type: ignore[misc]


def test_a_user_may_be_over_quota() -> None:
    """For tests: a mark in the export lets a user make no file; nothing is taken from who is beside it."""
    try:
        client.site("run", "c1", "--", "touch", "/srv/home/.full-2000")
        done = client.run("c2", "sh", "-c", "rm -f more; echo x >more")
        assert "quota exceeded" in done.stderr
        client.out("c2", "sh", "-c", "echo x >more", user="bob")
    finally:
        client.site("run", "c1", "--", "rm", "-f", "/srv/home/.full-2000")
    client.out("c2", "sh", "-c", "echo x >more")


def test_jobs_run() -> None:
    """It is a Slurm cluster all the same."""
    assert client.finished(client.submit("hostname", "--nodelist=c2", *FLAGS)) == "c2\n"


def refused(*flags: str) -> str:
    """What sbatch says to a job that it does not take."""
    done = client.run("ctl", "sbatch", *flags, "--wrap", "true")
    assert done.returncode != 0, done.stdout
    return done.stderr


def test_policy_demands_account_and_time() -> None:
    """A job without them is refused in Slurm's own words."""
    assert "Invalid account" in refused("--time=5")
    assert "Invalid account" in refused("--time=5", "--account=other")
    assert "Time limit specification required" in refused("--account=research")


def test_few_jobs_are_taken() -> None:
    """Alice has five jobs, queued and running; the next is refused in Slurm's own words, at any speed."""
    name = "--job-name=limit"
    room = 5 - len(client.out("ctl", "squeue", "--noheader", "--user=alice", "--states=PD,R,S").splitlines())
    jobs = [client.submit("sleep 60", "--hold", name, *FLAGS) for _ in range(room)]
    try:
        said = refused(*FLAGS)
        assert "sbatch: error: AssocMaxSubmitJobLimit" in said
        assert "Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size" in said
        client.finished(client.submit("true", *FLAGS, user="bob"), user="bob")
        client.out("ctl", "scancel", jobs.pop())
        client.eventually(
            lambda: client.run("ctl", "sbatch", "--hold", name, *FLAGS, "--wrap=").returncode == 0, what="room"
        )
    finally:
        client.out("ctl", "scancel", "--name=limit", "--user=alice")


CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 1)
    print("made")
except OSError as error:
    print(error.errno or error)
"""


def connects(origin: str, host: str, port: int) -> str:
    """`made`, or what becomes of a connection: the number of an error, or that nothing does."""
    return client.out(origin, "python3", "-c", CONNECT, host, str(port))


def test_the_login_node_reaches_few_ports() -> None:
    """Of compute nodes: Slurm's and ssh's. They reach each other, and Slurm on the login node."""
    for host in ("c1", "c2"):
        assert connects("ctl", host, 6443) == "timed out"
        assert connects("ctl", host, 6818) == "made"
        assert connects("ctl", host, 22) in {"made", "111"}
        assert connects(host, "ctl", 6817) == "made"
    assert connects("c1", "c2", 6444) == "111"
    assert client.out("ctl", "srun", *FLAGS, "hostname") in {"c1", "c2"}


def test_only_the_login_node_reaches_the_registry() -> None:
    """For the others there is no way there."""
    assert connects("ctl", "ctl", 5000) == "made"
    for host in ("c1", "c2"):
        assert connects(host, "ctl", 5000) == "101"


def test_there_is_no_kubectl() -> None:
    """Hosts have what their system brings."""
    for host in HOSTS:
        assert client.run(host, "sh", "-c", "command -v kubectl").returncode != 0


def test_one_partition_gives_whole_nodes() -> None:
    """A job of one CPU has all of its node's there, beside the partition that shares them."""
    job = client.submit("echo $SLURM_CPUS_ON_NODE", "--partition=whole", *FLAGS, user="bob")
    assert client.finished(job, user="bob") == "32\n"


def test_slurm_limits_rates() -> None:
    """Slurmctld counts each user's questions."""
    assert "rl_enable" in client.out("ctl", "scontrol", "show", "config")
