"""The end of the simulated cluster: it leaves nothing behind. These tests take it down, and up again at the end."""

import pathlib
import shutil
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.site import client

pytestmark = [pytest.mark.cluster, pytest.mark.destructive, pytest.mark.timeout(300)]
TREE = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def up_again(cluster: None) -> Iterator[None]:
    """Each test gets a running cluster, and the next one too."""
    assert client.site("up").returncode == 0
    yield
    assert client.site("up").returncode == 0


def traces() -> dict[str, set[str]]:
    """Return what of the machine a cluster could leave: mounts, interfaces, namespaces and their processes."""
    own = pathlib.Path("/proc/self/ns/pid").readlink()
    return {
        "mounts": {line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()},
        "interfaces": {path.name for path in pathlib.Path("/sys/class/net").iterdir()},
        "namespaces": set(subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.split()),
        "processes": {
            f"{path.name} {(path / 'cmdline').read_bytes()!r}"
            for path in pathlib.Path("/proc").glob("[0-9]*")
            if _is_elsewhere(path, own)
        },
    }


def _is_elsewhere(process: pathlib.Path, own: pathlib.Path) -> bool:
    try:
        return (process / "ns/pid").readlink() != own
    except OSError:
        return False  # it has ended


def assert_clean() -> None:
    """Nothing in the machine's tables names the cluster, and no process lives in another pid namespace of its."""
    left = traces()
    assert not [path for path in left["mounts"] if "hpk-site" in path]
    assert not [name for name in left["namespaces"] if "hpk-site" in name]
    assert not left["interfaces"] & {"br0", "ctl", "c1", "c2", "cni0", "flannel.1"}
    assert not left["processes"]
    assert client.site("status").stdout == "down\n"


def test_down_leaves_nothing() -> None:
    """With a job and a pod's container running, down removes all of it but the homes."""
    client.out("c1", "sh", "-c", "echo kept >note")
    job = client.submit("unshare --user --map-root-user --pid --net --fork --mount-proc sleep 4245")
    client.eventually(lambda: "R" in client.out("ctl", "squeue", "-h", "-j", job, "-o", "%t"), what="the job")
    done = client.site("down")
    assert done.returncode == 0, done.stderr
    assert_clean()
    assert client.site("down").returncode == 0
    assert client.site("up").returncode == 0
    assert client.out("c2", "cat", "note") == "kept"


def test_down_after_a_crash() -> None:
    """With the notes lost and a host dead, down still finds everything."""
    pid = int(pathlib.Path("/run/hpk-site/c1.pid").read_text().split()[0])
    signal.pidfd_send_signal(_pidfd(pid), signal.SIGKILL)
    shutil.rmtree("/run/hpk-site")
    assert "processes are left" in client.site("status").stdout
    assert client.site("down").returncode == 0
    assert_clean()


def _pidfd(pid: int) -> int:
    import os  # noqa: PLC0415

    return os.pidfd_open(pid)


def test_down_from_another_checkout(tmp_path: pathlib.Path) -> None:
    """A copy of the tree takes down what this one started."""
    shutil.copytree(TREE / "tests/site", tmp_path / "tests/site", symlinks=True)
    subprocess.run([tmp_path / "tests/site/site", "down"], check=True, timeout=60)
    assert_clean()


def test_killed_node_comes_back() -> None:
    """A node that loses power fails its job; up boots it again and it takes jobs."""
    job = client.submit("sleep 300", "--nodelist=c2", "--no-requeue")
    client.eventually(lambda: "R" in client.out("ctl", "squeue", "-h", "-j", job, "-o", "%t"), what="the job")
    assert client.site("kill", "c2").returncode == 0
    assert client.run("c2", "true").returncode == 3
    assert client.site("status").returncode == 1
    assert client.site("up").returncode == 0
    assert client.end(job) in {"NODE_FAIL", "FAILED"}
    assert client.finished(client.submit("hostname", "--nodelist=c2")) == "c2\n"


def test_purge_removes_the_homes() -> None:
    """After down --purge the next cluster starts from empty homes."""
    client.out("ctl", "sh", "-c", "echo gone >note")
    assert client.site("down", "--purge").returncode == 0
    assert not pathlib.Path("/var/lib/hpk-site").exists()
    assert client.site("up").returncode == 0
    assert client.run("ctl", "cat", "note").returncode != 0
