"""Pods on a site that prepared nothing: no setuid Apptainer, no subordinate ids, no Flannel (SITE_PROFILE=bare)."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Namespace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(os.environ.get("SITE_PROFILE") != "bare", reason="needs SITE_PROFILE=bare"),
]

LISTENING = """
import os, socket
server = socket.create_server(("", 80))
host, port = os.environ["KUBERNETES_SERVICE_HOST"], int(os.environ["KUBERNETES_SERVICE_PORT"])
socket.create_connection((host, port), 10).close()
print("reached the API server", flush=True)
try:
    socket.create_connection((os.environ["HOST_IP"], 6818), 5).close()
    print("reached the node", flush=True)
except OSError as error:
    print(error, flush=True)
server.accept()
"""


def pod(name: str, script: str, *, context: str = "{}", image: str = "busybox:1", more: str = "") -> str:
    """A manifest of one container that runs a line of shell."""
    return f"""
        apiVersion: v1
        kind: Pod
        metadata: {{name: {name}}}
        spec:
          restartPolicy: Never
          terminationGracePeriodSeconds: 1
          securityContext: {context}
          volumes: [{{name: e, emptyDir: {{}}}}, {{name: m, emptyDir: {{medium: Memory}}}}]
          {more}
          containers:
          - name: c
            image: ${{REGISTRY}}/{image}
            command: [sh, -c, {script!r}]
            volumeMounts: [{{name: e, mountPath: /e}}, {{name: m, mountPath: /m}}]
    """


def said(space: Namespace, name: str) -> str:
    """What a pod that succeeded has written."""
    until(lambda: space.phase(name) in {"Succeeded", "Failed"})
    text = space.kubectl("logs", name)
    assert space.phase(name) == "Succeeded", text
    return text


def test_pods_have_networks_of_their_own(space: Namespace) -> None:
    """Two pods on one node have port 80 each and an address each, and both reach the API server and their node."""
    for name in ("a", "b"):
        space.apply(
            f"""
            apiVersion: v1
            kind: Pod
            metadata: {{name: {name}, annotations: {{slurm.hpk.io/flags: --nodelist=c1}}}}
            spec:
              terminationGracePeriodSeconds: 1
              containers:
              - name: c
                image: ${{REGISTRY}}/python:3
                command: [python3, -c, {json.dumps(LISTENING)}]
                env: [{{name: HOST_IP, valueFrom: {{fieldRef: {{fieldPath: status.hostIP}}}}}}]
                readinessProbe: {{tcpSocket: {{port: 80}}, periodSeconds: 1}}
            """
        )
    space.kubectl("wait", "pod/a", "pod/b", "--for=condition=Ready", "--timeout=60s")
    one, other = (space.get("pod", name)["status"] for name in ("a", "b"))
    assert one["hostIP"] == other["hostIP"]
    assert len({one["podIP"], other["podIP"], one["hostIP"]}) == 3
    for name in ("a", "b"):
        assert space.kubectl("logs", name) == "reached the API server\nreached the node\n"
    done = cluster.run("python3", "-c", "import socket; socket.create_connection(('c1', 80), 2)", host="c1", code=None)
    assert done.returncode != 0, done  # the pod's ports are not the node's


def test_the_image_s_user_and_the_pod_s_are_honoured(space: Namespace) -> None:
    """As root, as the image's USER and as any number, what the process makes is its own, on every kind of volume."""
    make = "id -u; id -g; touch /e/x /m/x /tmp/x && stat -c %u:%g /e/x /m/x /tmp/x"
    space.apply(pod("root", make + "; echo changed >/bin/new && cat /bin/new"))
    space.apply(pod("image", make + "; cat /work/private", image="layers:1"))
    space.apply(pod("number", make, context="{runAsUser: 1234, runAsGroup: 77, runAsNonRoot: true}"))
    assert said(space, "root").split() == ["0", "0", "0:0", "0:0", "0:0", "changed"]
    assert said(space, "number").split() == ["1234", "77", *["1234:77"] * 3]
    assert said(space, "image").split()[:5] == ["1000", "1000", *["1000:1000"] * 3]


def test_what_needs_several_ids_is_refused_by_name(space: Namespace) -> None:
    """Whoever creates the pod is told what it would take."""
    with pytest.raises(cluster.Failed, match=r"fsGroup 5.*/etc/subuid"):
        space.apply(pod("group", "true", context="{fsGroup: 5}"))


def test_exec_probes_run_as_the_container_s_user(space: Namespace) -> None:
    """A command joins the user namespace of a container that has one of its own."""
    probe = '{readinessProbe: {exec: {command: [sh, -c, "test $(id -u) = 1234"]}, periodSeconds: 1}'
    text = pod("probed", "sleep 600", context="{runAsUser: 1234}").replace(
        "volumeMounts:", f"{probe[1:]}\n            volumeMounts:"
    )
    space.apply(text)
    space.kubectl("wait", "pod/probed", "--for=condition=Ready", "--timeout=60s")


def test_a_pod_may_ask_for_the_host_s_network(space: Namespace) -> None:
    """It has the node's address, and its host name is still its own."""
    space.apply(pod("host", "hostname; cat /proc/net/tcp | wc -l", more="hostNetwork: true"))
    assert said(space, "host").startswith("host\n")
    status = space.get("pod", "host")["status"]
    assert status["podIP"] == status["hostIP"]


def test_nothing_stays_on_the_node(space: Namespace) -> None:
    """Also what the pod has closed to its owner."""
    space.apply(pod("gone", "mkdir -p /e/d/x; chmod 0 /e/d; sleep 600", context="{runAsUser: 1234}"))
    until(lambda: space.phase("gone") == "Running")
    uid, job = space.get("pod", "gone")["metadata"]["uid"], space.job("gone")
    cluster.run("scancel", "--full", "--signal=KILL", job)  # the agent has no time to do it
    until(lambda: space.phase("gone") == "Failed")
    for host in ("c1", "c2"):
        until(lambda host=host: not cluster.shell(f"ls -d /tmp/hpk-{uid} 2>/dev/null; true", host=host))  # type: ignore[misc]


def test_exec_under_one_id(space: Namespace) -> None:
    """A command has the container's only user, whatever its number, in all of the container's namespaces."""
    space.apply(pod("p", "sleep 1000", context="{runAsUser: 1234, runAsGroup: 77}"))
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=90s")
    same = "for n in /proc/1/ns/*; do [ $(readlink $n) = $(readlink /proc/self/ns/${n##*/}) ] || echo $n; done"
    found = space.kubectl("exec", "p", "--", "sh", "-c", f"id -u; id -g; echo mine > /e/file; {same}")
    assert found.splitlines() == ["1234", "77"]
