"""The end of the simulated cluster: it leaves nothing behind. These tests take it down, and up again at the end."""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.site import client
from tests.site.hpksite import cgroups

pytestmark = [pytest.mark.cluster, pytest.mark.destructive, pytest.mark.timeout(300)]
TREE = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def up_again(cluster: None) -> Iterator[None]:
    """Each test gets a running cluster, and the next one too."""
    assert client.site("up").returncode == 0
    yield
    assert client.site("up").returncode == 0


def processes() -> set[tuple[str, str]]:
    """Return (pid, start time) of the hosts' first processes and all their descendants."""
    parents, started = {}, {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX":  # the end of those is only for the machine's init to notice
                parents[path.parent.name], started[path.parent.name] = fields[1], fields[19]
    found = {path.read_text().split()[0] for path in pathlib.Path("/run/hpk-site").glob("*.pid")} & started.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {(pid, started[pid]) for pid in found}


def is_alive(pid: str, start_time: str) -> bool:
    """Say whether a process still runs, and is no other one by now."""
    try:
        fields = pathlib.Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and fields[19] == start_time


def assert_gone(were_there: set[tuple[str, str]]) -> None:
    """Nothing in the machine's tables names the cluster, and none of its processes runs."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text()
    namespaces = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert "hpk-site" not in mounts
    assert "hpk-site" not in namespaces
    interfaces = {path.name for path in pathlib.Path("/sys/class/net").iterdir()}
    assert not interfaces & {"br0", "ctl", "c1", "c2", "cni0", "flannel.1"}
    assert not [folder for folder in cgroups.folders() if folder.exists()]
    assert were_there
    assert not [process for process in were_there if is_alive(*process)]
    assert client.site("status").stdout == "down\n"


def test_down_leaves_nothing() -> None:
    """With a job and a pod's container running, down removes all of it but the homes."""
    client.out("c1", "sh", "-c", "echo kept >note")
    job = client.submit("unshare --user --map-root-user --pid --net --fork --mount-proc sleep 4245")
    client.eventually(lambda: "R" in client.out("ctl", "squeue", "-h", "-j", job, "-o", "%t"), what="the job")
    were_there = processes()
    done = client.site("down")
    assert done.returncode == 0, done.stderr
    assert_gone(were_there)
    assert client.site("down").returncode == 0
    assert client.site("up").returncode == 0
    assert client.out("c2", "cat", "note") == "kept"


def test_down_after_a_crash() -> None:
    """With the notes lost and a host dead, down still finds everything."""
    were_there = processes()
    pid = int(pathlib.Path("/run/hpk-site/c1.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree("/run/hpk-site")
    assert "processes are left" in client.site("status").stdout
    assert client.site("down").returncode == 0
    assert_gone(were_there)


def test_down_from_another_checkout(tmp_path: pathlib.Path) -> None:
    """A copy of the tree takes down what this one started."""
    shutil.copytree(TREE / "tests/site", tmp_path / "tests/site", symlinks=True)
    were_there = processes()
    subprocess.run([tmp_path / "tests/site/site", "down"], check=True, timeout=60)
    assert_gone(were_there)


def test_down_spares_a_cluster_that_is_apart() -> None:
    """A command with a cluster of its own keeps it, whatever becomes of the machine's; and then nothing is left."""
    script = '"$0" up && echo there && read -r word && "$0" status && exit "$word"'
    argv = [str(TREE / "tests/site/apart"), "removal", "bash", "-c", script, str(client.SITE)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "there\n"
        assert client.site("down").returncode == 0
        other.stdin.write("42\n")
        other.stdin.close()
        assert other.stdout.readline().startswith("HOST")
        assert other.wait(60) == 42
    assert not pathlib.Path("/var/lib/hpk-apart-removal").exists()
    assert not [*cgroups.MACHINE.glob("*/*-removal")]


def test_killed_node_comes_back() -> None:
    """A node that loses power fails its job with NODE_FAIL; up boots it again and it takes jobs."""
    job = client.submit("sleep 300", "--nodelist=c2", "--no-requeue")
    client.eventually(lambda: "R" in client.out("ctl", "squeue", "-h", "-j", job, "-o", "%t"), what="the job")
    assert client.site("kill", "c2").returncode == 0
    assert client.run("c2", "true").returncode == 3
    assert client.site("status").returncode == 1
    assert client.end(job, seconds=90) == "NODE_FAIL"
    assert client.site("up").returncode == 0
    assert client.finished(client.submit("hostname", "--nodelist=c2")) == "c2\n"


def test_purge_removes_the_homes() -> None:
    """After down --purge the next cluster starts from empty homes."""
    client.out("ctl", "sh", "-c", "echo gone >note")
    assert client.site("down", "--purge").returncode == 0
    assert not pathlib.Path("/var/lib/hpk-site").exists()
    assert client.site("up").returncode == 0
    assert client.run("ctl", "cat", "note").returncode != 0
