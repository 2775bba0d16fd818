"""What a session finds in the pod: all that the container's own process has, and a real terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import cluster

if TYPE_CHECKING:
    from tests.e2e.conftest import Namespace

pytestmark = pytest.mark.cluster

SAME = """
for n in /proc/1/ns/* /proc/1/root /proc/1/cwd; do
  [ $(readlink $n) = $(readlink /proc/self/${n#/proc/1/}) ] || echo $n
done
"""
POD = """
    apiVersion: v1
    kind: Pod
    metadata: {name: p}
    spec:
      terminationGracePeriodSeconds: 1
      securityContext: {runAsUser: 1234, runAsGroup: 77}
      containers:
      - name: c
        image: ${REGISTRY}/busybox:1
        command: [sleep, "36000"]
        workingDir: /usr
        env: [{name: WHO, value: "it's c"}]
        securityContext: {readOnlyRootFilesystem: true}
      - name: web
        image: ${REGISTRY}/agnhost:2
        args: [pause]
        securityContext: {runAsUser: 1234}
"""


def test_exec_has_all_that_the_container_has(space: Namespace) -> None:
    """Its namespaces, user, environment and working directory, and its read-only root; in an image without a shell."""
    space.apply(POD)
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    found = space.kubectl("exec", "p", "-c", "c", "--", "sh", "-c", f'id -u; id -g; pwd; echo "$WHO"\n{SAME}')
    assert found.splitlines() == ["1234", "77", "/usr", "it's c"]
    space.kubectl("exec", "p", "-c", "c", "--", "touch", "/x", code=1)
    assert "netexec" in space.kubectl("exec", "p", "-c", "web", "--", "/agnhost", "--help")


def test_a_shell_in_a_pod_of_its_own(space: Namespace) -> None:
    """`kubectl run -it` talks to the container's own terminal, and ends as the container does."""
    types = r"(until grep -q ' #' seen; do sleep 0.2; done; printf 'tty; stty size; exit 9\n')"
    run = f"kubectl -n {space.name} run -it --restart=Never shell --image={cluster.REGISTRY}/busybox:1 -- sh"
    line = f'rm -f seen; touch seen; {types} | script -qefc "stty rows 31 cols 101; {run}" seen'
    done = cluster.run("bash", "-c", line, code=9)
    assert b"/dev/pts/" in done.stdout
    assert b"31 101" in done.stdout
