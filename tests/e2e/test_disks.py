"""File systems that are full, read-only or gone: a clear error, nothing lost, and a plain pod runs afterwards."""

from __future__ import annotations

import contextlib
import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.test_pods import where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Namespace

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
bare = pytest.mark.skipif(cluster.PROFILE.name != "bare", reason="needs SITE_PROFILE=bare")
SCRATCH = "/scratch/alice"


def pod(name: str, script: str = "true", *, flags: str = "--nodelist=c1", image: str = "busybox:1") -> str:
    """A manifest of a pod that runs a line of shell."""
    return f"""
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}, annotations: {{slurm.hpk.io/flags: {flags}}}}}
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 1
          volumes: [{{name: e, emptyDir: {{}}}}]
          containers:
          - name: c
            image: ${{REGISTRY}}/{image}
            command: [sh, -c, {json.dumps(script)}]
            volumeMounts: [{{name: e, mountPath: /e}}]
    """


def ends(space: Namespace, name: str) -> str:
    """The pod's last phase."""
    until(lambda: space.phase(name) in {"Succeeded", "Failed"})
    return space.phase(name)


def a_plain_pod_runs(space: Namespace) -> None:
    """Afterwards."""
    space.apply(pod("plain", "echo well"))
    assert ends(space, "plain") == "Succeeded"
    assert space.kubectl("logs", "plain") == "well\n"


@contextlib.contextmanager
def marked(kind: str) -> Iterator[None]:
    """Alice's home is full, or read-only (see tests/site/README.md)."""
    mark = f"/srv/home/.{kind}-2000"
    cluster.run("touch", mark, user="root", host="c1")
    try:
        yield
    finally:
        cluster.run("rm", "-f", mark, user="root", host="c1")


@contextlib.contextmanager
def scratch(options: str) -> Iterator[None]:
    """The nodes' scratch, as HPK_SCRATCH names it, is a file system of this kind on c1."""
    where = {"user": "root", "host": "c1"}
    cluster.shell(f"mkdir -p {SCRATCH} && mount -t tmpfs -o {options} tmpfs {SCRATCH}", **where)
    try:
        yield
    finally:
        cluster.shell(f"umount -l {SCRATCH}", **where)


@pytest.fixture(scope="class")
def moved(hpk: None) -> Iterator[None]:
    """HPK with scratch and images elsewhere."""
    for host in ("c1", "c2"):
        cluster.shell(f"mkdir -p -m 1777 {SCRATCH}", user="root", host=host)
    cluster.stop()
    settings = ("env", f"HPK_SCRATCH={SCRATCH}", "HPK_IMAGES=/home/alice/other/images", cluster.HPK)
    try:
        if cluster.PROFILE.filtered:  # only the login node reaches the registry
            cluster.run(*settings, "pull", f"{cluster.REGISTRY}/busybox:1")
        cluster.run(*settings, "up", seconds=180)
        yield
    finally:
        cluster.run(cluster.HPK, "down", code=None, seconds=180)
        cluster.start()


@pytest.mark.usefixtures("moved")
class TestScratch:
    """Where pods' files are on the compute node."""

    def test_each_directory_can_be_moved(self, space: Namespace) -> None:
        """Images and volumes are where HPK_IMAGES and HPK_SCRATCH say, and nothing of the pod stays."""
        space.apply(pod("p", "echo x >/e/file; sleep 600"))
        until(lambda: space.phase("p") == "Running")
        uid = space.get("pod", "p")["metadata"]["uid"]
        assert cluster.shell(f"ls -d {SCRATCH}/hpk-{uid}.*", host="c1")
        assert ".sqfs" in cluster.shell("ls -R other/images")
        space.kubectl("delete", "pod", "p")
        until(lambda: not cluster.shell(f"ls {SCRATCH}", host="c1").strip())

    @pytest.mark.parametrize(
        ("options", "words"),
        [("ro,mode=1777", "Read-only file system"), ("size=4k,nr_inodes=1,mode=1777", "No space left on device")],
    )
    def test_no_room_on_the_node(self, space: Namespace, options: str, words: str) -> None:
        """A pod that cannot have its directory is Failed with the node's words; others are not touched."""
        with scratch(options):
            space.apply(pod("p"))
            assert ends(space, "p") == "Failed"
            assert words in json.dumps(space.get("pod", "p")["status"]) + space.events("p")
        a_plain_pod_runs(space)

    def test_a_node_that_runs_full_under_a_pod(self, space: Namespace) -> None:
        """The container hears of it; the agent's report and the pod's end do not need the disk."""
        with scratch("size=2m,mode=1777"):
            space.apply(pod("p", "dd if=/dev/zero of=/e/x bs=64k count=100; exit 7"))
            assert ends(space, "p") == "Failed"
            state = space.get("pod", "p")["status"]["containerStatuses"][0]["state"]["terminated"]
            assert state["exitCode"] == 7
            assert "No space left on device" in space.kubectl("logs", "p")
        a_plain_pod_runs(space)


def test_a_pod_that_takes_more_of_the_disk_than_its_limits_is_evicted(space: Namespace) -> None:
    """Of an emptyDir and of a container's own files; one that stays below runs on."""
    fill = "head -c 3000000 /dev/zero > {}/x; exec sleep 600"
    limit = "resources: {limits: {ephemeral-storage: 2Mi}}"
    space.apply(pod("volume", fill.format("/e")).replace("emptyDir: {}", "emptyDir: {sizeLimit: 2Mi}"))
    space.apply(pod("layer", fill.format("")).replace("volumeMounts:", f"{limit}\n            volumeMounts:"))
    space.apply(pod("below", fill.format("/e")).replace("emptyDir: {}", "emptyDir: {sizeLimit: 20Mi}"))
    words = {
        "volume": 'Usage of EmptyDir volume "e" exceeds the limit "2Mi". ',
        "layer": "Pod ephemeral local storage usage exceeds the total limit of containers 2Mi. ",
    }
    for name, message in words.items():
        assert ends(space, name) == "Failed"
        status = space.get("pod", name)["status"]
        assert (status["reason"], status["message"]) == ("Evicted", message)
        assert f"Evicted: {message}" in space.events(name)
    assert space.phase("below") == "Running"


@bare
@pytest.mark.parametrize(("kind", "words"), [("full", "quota exceeded"), ("readonly", "Read-only file system")])
def test_a_home_without_room(space: Namespace, kind: str, words: str) -> None:
    """New pods wait and say why; those that run are seen to their end; nothing is lost, and then all goes on."""
    space.apply(pod("before", "until test -e /e/go; do sleep 0.2; done; echo done; exit 5"))
    until(lambda: space.phase("before") == "Running")
    with marked(kind):
        space.apply(pod("p", "echo here"))
        until(lambda: words in space.events("p"))
        assert space.phase("p") == "Pending"
        uid = space.get("pod", "before")["metadata"]["uid"]
        cluster.shell(f"cd /tmp/hpk-{uid}.*/volumes/e && touch go", host="c1")
        assert ends(space, "before") == "Failed"
        state = space.get("pod", "before")["status"]["containerStatuses"][0]["state"]["terminated"]
        assert state["exitCode"] == 5
        space.kubectl("create", "configmap", "kept")
    assert ends(space, "p") == "Succeeded"
    assert space.kubectl("logs", "p") == "here\n"
    a_plain_pod_runs(space)


@bare
def test_a_home_that_is_full_at_the_start(hpk: None) -> None:
    """`hpk up` says what is full and what would help; with room again it starts, and has lost nothing."""
    cluster.kubectl("create", "configmap", "from-before", "-n", "default")
    try:
        cluster.stop()
        with marked("full"):
            done = cluster.run(cluster.HPK, "up", code=None, seconds=180)
            assert done.returncode != 0
            assert b"quota exceeded" in done.stdout + done.stderr
    finally:
        cluster.run(cluster.HPK, "down", code=None)
        cluster.start()
    cluster.kubectl("delete", "configmap", "from-before", "-n", "default")


@pytest.fixture
def rebooted(space: Namespace) -> Iterator[None]:
    """All nodes are there again afterwards."""
    yield
    cluster.site_up(is_quiet=True)
    for host in ("c1", "c2"):
        cluster.run("scontrol", "update", f"nodename={host}", "state=resume", user="root", code=None)


@bare
@pytest.mark.destructive
@pytest.mark.usefixtures("rebooted")
def test_a_control_plane_whose_node_dies_comes_back_elsewhere(space: Namespace) -> None:
    """It loses its power, with etcd on its disk: what was copied is there again, and pods are adopted."""
    node = where()
    other = "c2" if node == "c1" else "c1"
    space.apply(pod("p", "until test -e /e/go; do sleep 0.2; done", flags=f"--nodelist={other}"))
    until(lambda: space.phase("p") == "Running")
    job = space.job("p")
    names = {f"kept-{number}-end" for number in range(20)}
    listed = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in names]
    space.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": listed}))
    copied = f"grep -rahoE 'configmaps/{space.name}/kept-[0-9]+-end' ~/.hpk/state/etcd | sort -u | wc -l"
    until(lambda: int(cluster.shell(copied)) == len(names))  # what is younger may be lost
    control_plane = cluster.shell("squeue -h -n hpk -o %A").split()[0]
    subprocess.run([str(cluster.SITE), "kill", node], check=True, capture_output=True)
    cluster.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test", user="root")
    cluster.run("scancel", control_plane, code=None)  # Slurm itself starts it anew, but only after two minutes
    until(lambda: not cluster.shell(f"squeue -h -j {control_plane} -o %A; true").strip())
    cluster.start()
    assert where() == other
    found = space.kubectl("get", "configmaps", "-o", "jsonpath={.items[*].metadata.name}")
    assert names <= set(found.split())
    assert (space.phase("p"), space.job("p")) == ("Running", job)
    uid = space.get("pod", "p")["metadata"]["uid"]
    cluster.shell(f"cd /tmp/hpk-{uid}.*/volumes/e && touch go", host=other)
    assert ends(space, "p") == "Succeeded"
    space.apply(pod("plain", "echo well", flags=f"--nodelist={other}"))
    assert ends(space, "plain") == "Succeeded"
