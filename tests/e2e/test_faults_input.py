"""Bad input, bad registries and a bad sbatch: a clear error, nothing lost or run twice, and a plain pod runs.

All pods are there from the beginning, so that their waits pass together; each test looks at its own.
See docs/faults.md for the whole table.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e import conftest
from tests.e2e.conftest import until
from tests.e2e.faults import pods
from tests.site import client

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

FAULTS = Path(__file__).parent / "faults"
WRAPPER = "/usr/local/bin/sbatch"
HOSTS = ("ctl", "c1", "c2")
BAD, DOWN, UNNAMED = "ctl:5900", "ctl:5901", "ctl:5902"
"""The registry that misbehaves; a port where nobody listens; the former again, not named in the settings."""


@pytest.fixture(scope="module", autouse=True)
def registry(hpk: None) -> Iterator[None]:
    """The misbehaving registry, under two ports."""
    cluster.run("sh", "-c", "cat >/tmp/bad-registry.py", stdin=(FAULTS / "registry.py").read_bytes())
    command = ("python3", "/tmp/bad-registry.py")
    with (
        client.started("ctl", *command, BAD.partition(":")[2], cluster.REGISTRY),
        client.started("ctl", *command, UNNAMED.partition(":")[2], cluster.REGISTRY),
    ):
        yield


@pytest.fixture(scope="module", autouse=True)
def wrapper(hpk: None) -> Iterator[None]:
    """The sbatch in trouble on every host."""
    text = (FAULTS / "sbatch.sh").read_bytes()
    for host in HOSTS:
        cluster.run("sh", "-c", f"cat >{WRAPPER}; chmod 755 {WRAPPER}", host=host, user="root", stdin=text)
    yield
    for host in HOSTS:
        cluster.run("rm", WRAPPER, host=host, user="root")


@pytest.fixture(scope="module")
def space(registry: None, wrapper: None) -> Iterator[conftest.Namespace]:
    """A namespace with all the pods that take long."""
    made = conftest.Namespace(f"t-faults-{secrets.token_hex(2)}")
    cluster.kubectl("create", "namespace", made.name)
    until(lambda: made.get("serviceaccount", "default"))
    cluster.shell(f"rm -rf {pods.COUNTS}; mkdir {pods.COUNTS}")
    made.apply(pods.counted("plain"))
    assert pods.ended(made, "plain") == "Succeeded"  # sbatch has been well: from here on it may be tried side by side
    for how in ("hangs", "late", "mumbles", "lies", "busy"):  # what is in trouble waits by partition, as it is written
        made.apply(pods.counted(f"sbatch-{how}", "sleep 1", flags=f"-J fault-{how} -p main"))
    for name, image in IMAGES.items():
        made.apply(pods.pod(name, "echo pulled", image=image, container={"imagePullPolicy": "Always"}))
    yield made
    made.remove()


IMAGES = {
    "registry-down": f"{DOWN}/busybox:1",
    "registry-lies": f"{BAD}/lies/busybox:1",
    "registry-swaps": f"{BAD}/swaps/busybox:1",
    "registry-drips": f"{BAD}/drips/busybox:1",
    "registry-late": f"{BAD}/late/busybox:1",
    "registry-unnamed": f"{UNNAMED}/late/busybox:1",
    "image-missing": "${REGISTRY}/nosuch:1",
}


@pytest.mark.parametrize(
    ("name", "manifest", "expected"),
    [
        ("flags", pods.pod("flags", flags="--nonsense=7"), r"--nonsense is not an option of sbatch"),
        ("array", pods.pod("array", flags="--array=1-3"), r"--array"),
        ("quote", pods.pod("quote", flags="-J 'no end"), r"slurm\.hpk\.io/flags.*No closing quotation"),
        ("value", pods.pod("value", flags="--time=whenever"), r"(?i)invalid.*time|--time"),
        (
            "partition",
            pods.pod("partition", flags="-p nosuch"),
            r"invalid partition specified: nosuch.*\(known: gpu, main",
        ),
        ("feature", pods.pod("feature", flags="--constraint=nosuch"), r"Invalid feature specification"),
        ("node", pods.pod("node", flags="--nodelist=nosuch"), r"(?i)invalid node name"),
        ("field", pods.pod("field", hostPID=True), r"spec\.hostPID is not supported"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    space: conftest.Namespace, name: str, manifest: str, expected: str
) -> None:
    """By kubectl apply where that can know, else by a Failed pod."""
    told = pods.refusal(space, manifest)
    if not told:
        assert pods.ended(space, name) == "Failed"
        told = pods.words(space, name)
        reason = space.get("pod", name)["status"]["reason"]
        assert f" {reason} " in space.kubectl("get", "pod", name, "--no-headers")
    assert re.search(expected, told, re.DOTALL), told


def test_what_the_node_lacks_is_waited_for_by_name(space: conftest.Namespace) -> None:
    """No job, no failure: kubectl apply warns, kubectl describe says why, and the pod runs when the node has it."""
    large = {"resources": {"requests": {"cpu": "999"}, "limits": {"memory": "9Ti"}}}
    space.apply(pods.pod("large", container=large))
    label = f"hpk.example/{space.name}"
    choosy = pods.pod("choosy", nodeSelector={label: "yes"}).replace("${REGISTRY}", cluster.REGISTRY).encode()
    done = cluster.run("kubectl", "-n", space.name, "apply", "-f", "-", stdin=choosy)
    assert b"Warning: the pod stays Pending for now: 0/1 nodes are available: 1 node(s) didn't match" in done.stderr
    for name, words in (("large", "1 Insufficient cpu, 1 Insufficient memory"), ("choosy", "node affinity/selector")):
        space.kubectl("wait", f"pod/{name}", "--for=condition=PodScheduled=false", "--timeout=300s")
        assert words in space.get("pod", name)["status"]["conditions"][0]["message"]
        until(lambda name=name: "FailedScheduling" in space.events(name))  # type: ignore[misc]
        assert conftest.jobs_of(space.get("pod", name)["metadata"]["uid"]) == []
    space.kubectl("label", "node", "hpk", f"{label}=yes")
    try:
        assert pods.ended(space, "choosy") == "Succeeded"
    finally:
        space.kubectl("label", "node", "hpk", f"{label}-")


def test_a_command_that_does_not_exist_says_which(space: conftest.Namespace) -> None:
    """As on any cluster: StartError, 128, and the name."""
    space.apply(pods.pod("command", container={"command": ["/no/such/program"]}))
    assert pods.ended(space, "command") == "Failed"
    (one,) = space.get("pod", "command")["status"]["containerStatuses"]
    assert one["state"]["terminated"]["exitCode"] in {127, 128}
    assert "/no/such/program" in pods.words(space, "command")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("image-missing", r"not found"),
        ("registry-down", rf"Failed to pull image .*{DOWN}.*(?i:connect|refused)"),
        ("registry-lies", r"Failed to pull image .*wrong digest: sha256:"),
        ("registry-swaps", r"Failed to pull image .*wrong digest: sha256:"),
        ("registry-unnamed", r"Failed to pull image .*HPK_INSECURE_REGISTRIES"),
    ],
)
def test_an_image_that_cannot_be_had_leaves_its_pod_waiting(
    space: conftest.Namespace, name: str, expected: str
) -> None:
    """With the pull and the reason in events, and tried again with pauses; no job is made."""
    until(lambda: re.search(expected, pods.words(space, name)))
    assert "Pulling: Pulling image" in space.events(name)
    waiting = space.get("pod", name)["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] in {"ErrImagePull", "ImagePullBackOff"}
    assert space.phase(name) == "Pending"
    assert conftest.jobs_of(space.get("pod", name)["metadata"]["uid"]) == []


def test_a_slow_registry_delays_nobody_else_and_its_pod_can_be_deleted(space: conftest.Namespace) -> None:
    """A pull that never ends says that it is under way; the pod's deletion does not wait for it."""
    until(lambda: "Pulling image" in space.events("registry-drips"))
    pods.plain_pod_runs(space, "beside")
    space.kubectl("delete", "pod", "registry-drips", "--timeout=300s")
    assert pods.ended(space, "registry-late") == "Succeeded"


@pytest.mark.parametrize("how", ["hangs", "late", "mumbles", "lies", "busy"])
def test_an_sbatch_in_trouble_makes_one_job(space: conftest.Namespace, how: str) -> None:
    """It hangs; submits but does not answer; answers rubbish, with and without a job; is busy: the pod runs once."""
    name = f"sbatch-{how}"
    assert pods.ended(space, name, seconds=400) == "Succeeded", pods.words(space, name)  # each in its turn
    assert pods.runs(name) == 1
    assert len(conftest.jobs_of(space.get("pod", name)["metadata"]["uid"])) == 1
    assert "FailedSubmit: Cannot submit yet, will try again" in space.events(name)


def test_a_plain_pod_runs_afterwards(space: conftest.Namespace) -> None:
    """Nothing of all that has hurt the kubelet."""
    pods.plain_pod_runs(space, "afterwards")
