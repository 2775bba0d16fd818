"""From an image's name in a pod to what its containers find: against the cluster's own registry."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e import conftest
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

LOOK = """
cd /stuff; for name in * opaque/*; do stat -c '%n %u:%g %a %h' $name; done
cat replaced private opaque/new; echo "$SPACES|$EQUALS|$PWD|$(id -u):$(id -g)"
for name in /proc /dev /sys /etc; do test -d $name || echo no $name; done
"""
FOUND = """
kept 1000:1000 644 2
kept-too 1000:1000 644 2
opaque 0:0 755 2
private 1000:1000 600 1
replaced 1000:1000 644 1
opaque/new 0:0 644 1
upper
only uid 1000 reads this
new
two  words |a=b|/stuff|1000:1000
"""


def pod(name: str, image: str, command: list[str] | None = None, **fields: object) -> str:
    """A pod of one container."""
    container: dict[str, object] = {"name": "c", "image": image, **fields}
    if command is not None:
        container["command"] = command
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})


def output(space: conftest.Namespace, name: str) -> str:
    """What the pod wrote, once it has succeeded."""
    until(lambda: space.phase(name) in ("Succeeded", "Failed"))
    text = space.kubectl("logs", name)
    assert space.phase(name) == "Succeeded", text
    return text


def container(space: conftest.Namespace, name: str) -> dict[str, Any]:
    """The status of the pod's container, or {}."""
    statuses = space.get("pod", name).get("status", {}).get("containerStatuses", [])
    return dict(statuses[0]) if statuses else {}


def waiting(space: conftest.Namespace, name: str) -> dict[str, str]:
    """Why the container waits, or {}."""
    return dict(container(space, name).get("state", {}).get("waiting", {}))


def test_layers_owners_and_config_arrive(space: conftest.Namespace) -> None:
    """Whiteouts, opaque directories, hard links, owners, modes, user, environment and directory of the image."""
    space.apply(pod("layers", "${REGISTRY}/layers:1", ["sh", "-c", LOOK]))
    assert output(space, "layers").split() == FOUND.split()


def test_images_of_one_name_do_not_mix(space: conftest.Namespace) -> None:
    """``busybox:1`` and ``alias/busybox:1`` are different images, also on one node and cached."""
    space.apply(pod("plain", "${REGISTRY}/busybox:1", ["sh", "-c", "echo busybox"]))
    space.apply(pod("alias", "${REGISTRY}/alias/busybox:1", ["/agnhost", "help"]))
    assert output(space, "plain") == "busybox\n"
    assert "audit-proxy" in output(space, "alias")
    plain, alias = (container(space, name)["imageID"] for name in ("plain", "alias"))
    assert plain.startswith(f"{cluster.REGISTRY}/busybox@sha256:")
    assert alias.startswith(f"{cluster.REGISTRY}/alias/busybox@sha256:")
    assert plain.rpartition(":")[2] != alias.rpartition(":")[2]


def test_an_index_gives_this_platform(space: conftest.Namespace) -> None:
    """The registry's other image under the name is for another machine and would not run."""
    space.apply(pod("multi", "${REGISTRY}/multi:1", ["sh", "-c", "echo runs"]))
    assert output(space, "multi") == "runs\n"


def test_a_missing_image_waits_with_the_registrys_answer(space: conftest.Namespace) -> None:
    """ErrImagePull, then ImagePullBackOff, an event in containerd's words, and no Slurm job."""
    space.apply(pod("missing", "${REGISTRY}/no/such:image"))
    name = f"{cluster.REGISTRY}/no/such:image"
    until(lambda: waiting(space, "missing").get("reason") == "ImagePullBackOff")
    assert f'failed to resolve reference "{name}": {name}: not found' in space.events("missing")
    assert conftest.jobs_of(space.get("pod", "missing")["metadata"]["uid"]) == []


@pytest.mark.parametrize(
    ("image", "policy", "reason", "words"),
    [
        ("Not/A:Name:1", "IfNotPresent", "InvalidImageName", "couldn't parse image name"),
        ("ctl:5000/python:none", "Never", "ErrImageNeverPull", "is not present with pull policy of Never"),
    ],
)
def test_refusals_have_the_kubelets_reasons(
    space: conftest.Namespace, image: str, policy: str, reason: str, words: str
) -> None:
    """Names that are none, and images that may not be pulled."""
    space.apply(pod("refused", image, imagePullPolicy=policy))
    until(lambda: waiting(space, "refused").get("reason") == reason)
    until(lambda: words in space.events("refused"))


@pytest.fixture
def sif() -> Iterator[str]:
    """A SIF of the user's own with a runscript and an environment, outside the images directory."""
    text = "Bootstrap: docker\nFrom: ctl:5000/busybox:1\n%environment\nexport FOO=bar\n%runscript\necho run $FOO $@\n"
    cluster.shell("mkdir -p ~/sif-test && cat > ~/sif-test/x.def", stdin=text.encode())
    cluster.shell("cd ~/sif-test && APPTAINER_NOHTTPS=1 apptainer -q build -F x.sif x.def")
    yield "/home/alice/sif-test/x.sif"
    cluster.shell("rm -r ~/sif-test")


def test_a_sif_is_used_where_it_lies(space: conftest.Namespace, sif: str) -> None:
    """It runs like ``apptainer run``, and a command replaces that."""
    space.apply(pod("run", sif, args=["a", "b"]))
    space.apply(pod("exec", f"file://{sif}", ["sh", "-c", "echo $PATH"]))
    assert output(space, "run") == "run bar a b\n"
    assert "/bin" in output(space, "exec")
    assert container(space, "run")["imageID"].startswith(f"file://{sif}@sha256:")


def test_what_was_pulled_on_the_login_node_needs_no_registry(space: conftest.Namespace) -> None:
    """`hpk pull` prints digest and size; a pod that may not pull finds the image."""
    name = f"{cluster.REGISTRY}/alias/busybox:1"
    told = cluster.run(cluster.HPK, "pull", name, f"{cluster.REGISTRY}/nosuch:1", code=1)
    assert re.fullmatch(rf"{re.escape(name)}  sha256:[0-9a-f]{{64}}  [0-9.]+ MB  \(.*\)\n", told.stdout.decode())
    assert "nosuch" in told.stderr.decode()
    again = cluster.run(cluster.HPK, "pull", name).stdout.decode()
    assert "up to date" in again
    space.apply(pod("pulled", name, ["/agnhost", "--help"], imagePullPolicy="Never"))
    assert "Usage" in output(space, "pulled")


def test_kubectl_of_the_image_is_like_any_other(space: conftest.Namespace) -> None:
    """Input, a file outside the home, exit code, and words after ``--``."""
    hpk = (cluster.HPK, "kubectl", "-n", space.name)
    manifest = pod("k", f"{cluster.REGISTRY}/busybox:1", ["true"]).encode()
    assert cluster.run(*hpk, "apply", "-f", "-", stdin=manifest).stdout == b"pod/k created\n"
    cluster.run("sh", "-c", f"cat > /tmp/{space.name}.json", stdin=manifest)
    assert cluster.run(*hpk, "apply", "-f", f"/tmp/{space.name}.json").stdout == b"pod/k unchanged\n"
    cluster.run("rm", f"/tmp/{space.name}.json")
    absent = cluster.run(*hpk, "get", "pod", "nosuch", code=None)
    assert absent.returncode == 1
    assert b"NotFound" in absent.stderr
    assert b"--output" in cluster.run(*hpk, "get", "--help").stdout


def test_an_image_that_a_pod_uses_is_not_pruned(space: conftest.Namespace) -> None:
    """Nobody else's is removed here: it is only asked what would be."""
    space.apply(pod("user", "${REGISTRY}/busybox:1", ["sleep", "600"]))
    until(lambda: space.phase("user") == "Running")
    found = json.loads(cluster.run(cluster.HPK, "prune", "--all", "--dry-run", "--json").stdout)
    here = "/home/alice/.hpk/images" + ("" if cluster.PROFILE.subordinate_ids else "/one-id")
    # A site that had or had not subordinate ids has left an image of the same name in the other directory.
    (kept,) = (
        one for one in found["kept"] if one["directory"] == here and f"{cluster.REGISTRY}/busybox:1" in one["names"]
    )
    assert kept["reason"].startswith("in use by ")
    assert space.get("pod", "user")["metadata"]["uid"] in " ".join(kept["pods"])
    assert found["dryRun"] is True
    space.kubectl("delete", "pod", "user", "--wait=false")


def test_nodes_keep_python_from_pod_to_pod(space: conftest.Namespace) -> None:
    """Each sandbox has the copies beside hpk.sif in place of the image's own files."""
    space.apply(pod("long", "${REGISTRY}/busybox:1", ["sleep", "600"]))
    until(lambda: space.phase("long") == "Running")
    uid = space.get("pod", "long")["metadata"]["uid"]
    lines = cluster.shell("squeue -h --me -t R -o '%i %N %k'").splitlines()
    job, node = next(line.split()[:2] for line in lines if uid in line)
    look = f"cat /proc/$(pgrep -o -f '__main__.py job_id={job} ')/mountinfo"
    mounts = [line.split()[3:5] for line in cluster.shell(look, user="root", host=node).splitlines()]
    copied = {target: source for source, target in mounts if "/.hpk/warm/" in source}
    assert sorted(name.rpartition("/")[2].partition(".")[0] for name in copied) == ["cygrpc", "python3"]
    space.kubectl("delete", "pod", "long", "--wait=false")
