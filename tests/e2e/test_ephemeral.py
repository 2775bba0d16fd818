"""`kubectl debug`: a container more in a pod that runs, that looks at the others, and that the pod does not notice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.faults import pods
from tests.e2e.test_pods import where

if TYPE_CHECKING:
    from tests.e2e import conftest

pytestmark = pytest.mark.cluster

BUSYBOX = f"--image={cluster.REGISTRY}/busybox:1"
POD = """
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{name: v, emptyDir: {}}]
      containers:
      - name: c
        image: ${REGISTRY}/agnhost:2
        volumeMounts: [{name: v, mountPath: /v}]
"""
LEAVES = "sleep 36001 & sleep 36002 & ps; hostname; exit 5"


def told(space: conftest.Namespace, name: str, pod: str = "p") -> dict[str, Any]:
    """The state of an ephemeral container."""
    statuses = space.get("pod", pod)["status"].get("ephemeralContainerStatuses", [])
    found: list[dict[str, Any]] = [one["state"] for one in statuses if one["name"] == name]
    return found[0] if found else {}


def runs(space: conftest.Namespace, name: str) -> str:
    """When it was started, once it runs."""
    return str(until(lambda: told(space, name).get("running", {}).get("startedAt", "")))


def processes(space: conftest.Namespace, container: str) -> str:
    """What a container of the pod sees."""
    return space.kubectl("exec", "p", "-c", container, "--", "ps")


def test_a_container_more_that_looks_at_another(space: conftest.Namespace) -> None:
    """It shares the target's processes and the pod's network, and is reached like any container; what it left goes."""
    space.apply(POD)
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    debug = ("debug", "p", BUSYBOX)
    space.kubectl(*debug, "-c", "look", "--target=c", "--", "sleep", "36000")
    space.kubectl(*debug, "-c", "short", "--target=c", "--", "sh", "-c", LEAVES)
    space.kubectl(*debug, "-c", "alone", "--", "sh", "-c", "ps; cat /etc/hosts")
    runs(space, "look")
    until(lambda: "terminated" in told(space, "short") and "terminated" in told(space, "alone"))
    assert told(space, "short")["terminated"]["exitCode"] == 5
    said = space.kubectl("logs", "p", "-c", "short")
    assert "/agnhost pause" in said
    assert said.splitlines()[-1] == "p"
    alone = space.kubectl("logs", "p", "-c", "alone")
    assert "agnhost" not in alone
    assert space.get("pod", "p")["status"]["podIP"] in alone
    seen = processes(space, "look")
    assert "/agnhost pause" in seen
    assert "sleep 36000" in seen
    assert not [left for left in ("sleep 36001", "sleep 36002") if left in seen]

    # As a user types it: a terminal of its own, attached; ^C is the shell's, and its exit ends the container.
    types = r"(until grep -q '#' seen; do sleep 0.2; done; printf 'tty; echo $((6*7)); exit 9\n')"
    line = f"kubectl -n {space.name} debug -it p {BUSYBOX} -c shell --target=c -- sh"
    seen = cluster.shell(f'cd $(mktemp -d); touch seen; {types} | script -qefc "{line}" seen; true')
    assert "/dev/pts/" in seen
    assert "42" in seen
    until(lambda: told(space, "shell").get("terminated", {}).get("exitCode") == 9)
    # From a pipe: what comes of the last line is seen, though the input ended with it.
    piped = f"printf 'echo $((6*7))\n' | kubectl -n {space.name} debug -i p {BUSYBOX} -c piped -- sh"
    assert "42" in cluster.shell(piped)
    (one,) = space.get("pod", "p")["status"]["containerStatuses"]
    assert (one["restartCount"], one["ready"], space.phase("p")) == (0, True, "Running")


def test_a_copy_whose_containers_share_their_processes(space: conftest.Namespace) -> None:
    """As `kubectl debug --copy-to` makes it. Process 1 has nothing of the agent's, not even for who may trace it."""
    space.apply(POD)
    both = "until ps | grep -q '[a]gnhost pause'; do sleep 0.1; done"
    look = f"{both}; ls -A /proc/1/root/; cat /proc/1/environ; ps; sleep 36000"
    space.kubectl("debug", "p", "--copy-to=q", BUSYBOX, "-c", "d", "--", "sh", "-c", look)
    until(lambda: "/agnhost pause" in space.kubectl("logs", "q", "-c", "d", code=None))
    first, *rest = space.kubectl("logs", "q", "-c", "d").splitlines()
    assert first.split() == ["PID", "USER", "COMMAND"]
    assert "pause.rest" in rest[0]
    assert "SYS_PTRACE" in str(space.get("pod", "q")["spec"]["containers"])
    kill = r"sleep 36003 >/dev/null 2>&1 & kill $(ps | sed -n 's/^ *\([0-9]*\) .*agnhos[t] pause/\1/p')"
    space.kubectl("exec", "q", "-c", "d", "--", "sh", "-c", kill)
    until(lambda: space.get("pod", "q")["status"]["containerStatuses"][0]["restartCount"] == 1)
    until(lambda: "/agnhost pause" in space.kubectl("exec", "q", "-c", "d", "--", "ps"))
    assert "sleep 36003" in space.kubectl("exec", "q", "-c", "d", "--", "ps")


def test_what_cannot_be_had_is_said(space: conftest.Namespace) -> None:
    """By kubectl where the API server can know, else in the container's status; the pod runs on."""
    space.apply(POD)
    refused = cluster.run(
        "kubectl", "debug", "node/hpk", "-n", space.name, BUSYBOX, "--", "true", code=None
    ).stderr.decode()
    assert "spec.hostPID is not supported" in refused
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    kubectl = ("kubectl", "-n", space.name, "debug", "p")
    refused = cluster.run(*kubectl, BUSYBOX, "--profile=sysadmin", "-c", "a", code=None).stderr.decode()
    assert (
        "container a: securityContext.privileged is not supported (a pod has no privilege over the compute node)"
        in refused
    )
    cluster.run(*kubectl, f"--image={cluster.REGISTRY}/none:1", "-c", "b")
    cluster.run(*kubectl, BUSYBOX, "--profile=restricted", "-c", "c2")
    until(lambda: told(space, "b").get("waiting", {}).get("reason") in {"ErrImagePull", "ImagePullBackOff"})
    until(lambda: told(space, "c2").get("waiting", {}).get("reason") == "CreateContainerConfigError")
    assert "image will run as root" in told(space, "c2")["waiting"]["message"]
    assert not told(space, "a")
    assert space.phase("p") == "Running"


@pytest.mark.destructive
def test_it_outlives_the_kubelet(space: conftest.Namespace) -> None:
    """A kubelet that is started again finds it running, starts none twice, and starts the next."""
    space.apply(POD)
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    debug = ("debug", "p", BUSYBOX, "--target=c")
    space.kubectl(*debug, "-c", "before", "--", "sh", "-c", "echo started; sleep 36000")
    began = runs(space, "before")
    pods.kill("^/usr/bin/python3.13 -IS /opt/hpk/bin/hpk serve", host=where())
    until(cluster.is_running)
    until(lambda: "sleep 36000" in space.kubectl("exec", "p", "-c", "before", "--", "ps", code=None))
    space.kubectl(*debug, "-c", "after", "--", "sh", "-c", "ps")
    until(lambda: told(space, "after").get("terminated", {}).get("exitCode") == 0)
    assert "sleep 36000" in space.kubectl("logs", "p", "-c", "after")
    assert runs(space, "before") == began
    assert space.kubectl("logs", "p", "-c", "before") == "started\n"
