"""Pods on a site that prepared nothing: no setuid Apptainer, no subordinate ids, no Flannel (SITE_PROFILE=bare)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import cluster
from tests.e2e import storms
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from tests.e2e.conftest import Namespace

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(cluster.PROFILE.name != "bare", reason="needs SITE_PROFILE=bare"),
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
    print("not the node:", error, flush=True)
server.accept()
"""


SECOND = """
          initContainers:
          - {name: first, image: "${REGISTRY}/busybox:1", command: ["true"], securityContext: {runAsUser: 7}}
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
    text = space.kubectl("logs", name, "-c", "c")
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
    space.kubectl("wait", "pod/a", "pod/b", "--for=condition=Ready", "--timeout=300s")
    one, other = (space.get("pod", name)["status"] for name in ("a", "b"))
    assert one["hostIP"] == other["hostIP"]
    assert len({one["podIP"], other["podIP"], one["hostIP"]}) == 3
    for name in ("a", "b"):
        # It listens before it looks around, and is Ready with that.
        said = until(lambda name=name: "node" in (said := space.kubectl("logs", name)) and said)  # type: ignore[misc]
        assert said == "reached the API server\nreached the node\n"
    done = cluster.run("python3", "-c", "import socket; socket.create_connection(('c1', 80), 2)", host="c1", code=None)
    assert done.returncode != 0, done  # the pod's ports are not the node's


def test_the_image_s_user_and_the_pod_s_are_honoured(space: Namespace) -> None:
    """As root, as the image's USER and as any number, what the process makes is its own, on every kind of volume."""
    make = "id -u; id -g; touch /e/x /m/x /tmp/x && stat -c %u:%g /e/x /m/x /tmp/x"
    space.apply(pod("root", make + "; echo changed >/bin/new && cat /bin/new"))
    space.apply(pod("image", make + "; cat /stuff/private", image="layers:1"))
    space.apply(pod("number", make, context="{runAsUser: 1234, runAsGroup: 77, runAsNonRoot: true}"))
    assert said(space, "root").split() == ["0", "0", "0:0", "0:0", "0:0", "changed"]
    assert said(space, "number").split() == ["1234", "77", *["1234:77"] * 3]
    assert said(space, "image").split()[:5] == ["1000", "1000", *["1000:1000"] * 3]


def test_what_needs_several_ids_is_refused_by_name(space: Namespace) -> None:
    """Whoever creates the pod is told what it would take, and there is no pod; one number for all is no problem."""
    for context, words in {
        "{fsGroup: 5}": "fsGroup 5",
        "{supplementalGroups: [7]}": "supplementalGroups 7",
        "{runAsUser: 1000}": "runAsUser 7 and 1000 in one pod",
    }.items():
        with pytest.raises(cluster.Failed, match=rf"denied the request: .*{words}.*/etc/subuid"):
            space.apply(pod("several", "true", context=context, more=SECOND))
    assert not space.get("pod", "several")
    space.apply(pod("one", "id -u", context="{runAsUser: 7}", more=SECOND))
    assert said(space, "one") == "7\n"


def test_exec_probes_run_as_the_container_s_user(space: Namespace) -> None:
    """A command joins the user namespace of a container that has one of its own."""
    probe = '{readinessProbe: {exec: {command: [sh, -c, "test $(id -u) = 1234"]}, periodSeconds: 1}'
    text = pod("probed", "sleep 600", context="{runAsUser: 1234}").replace(
        "volumeMounts:", f"{probe[1:]}\n            volumeMounts:"
    )
    space.apply(text)
    space.kubectl("wait", "pod/probed", "--for=condition=Ready", "--timeout=300s")


def test_a_pod_may_ask_for_the_host_s_network(space: Namespace) -> None:
    """It has the node's address, and its host name is still its own."""
    space.apply(pod("host", "hostname; cat /proc/net/tcp | wc -l", more="hostNetwork: true"))
    assert said(space, "host").startswith("host\n")
    status = space.get("pod", "host")["status"]
    assert status["podIP"] == status["hostIP"]


def test_images_that_nobody_pulled_are_explained(space: Namespace) -> None:
    """The registry is out of reach where the control plane runs: the event says what helps."""
    space.apply(pod("missing", "true", image="busybox:2"))
    until(lambda: "run there: hpk pull ctl:5000/busybox:2" in space.events("missing"))


def test_fifty_pods_under_a_submit_limit_all_run_in_the_end(space: Namespace) -> None:
    """The site takes five jobs at a time, the control plane's own included."""
    storms.all_succeed(space, pods=50)


def steps() -> str:
    """Which of the control plane's steps are tunnels."""
    return cluster.shell("squeue --noheader --me --steps --format='%i %j' | grep hpk-connect; true")


def test_commands_find_a_way_by_themselves(hpk: None) -> None:
    """Where ports are filtered: one tunnel for all, made anew when it is gone, by two at once too."""
    cluster.shell(
        "cd .hpk/run; ! pid=$(jq .pid tunnel-ctl.json) || kill $pid; while test -e tunnel-ctl.json; do sleep 0.1; done"
    )
    until(lambda: not steps())
    both = f"{cluster.HPK} kubectl get --raw /version & {cluster.HPK} kubectl get --raw /version; wait"
    assert cluster.shell(both).count('"gitVersion"') == 2
    told = cluster.run(cluster.HPK, "status").stdout.decode()
    assert ", by srun to c" in told
    assert "Ready (cpu " in told
    assert len(steps().splitlines()) == 1
    assert "hpk kubectl get nodes" in cluster.run(cluster.HPK, "up").stdout.decode()


def test_a_megabyte_each_way_is_what_it_was(space: Namespace) -> None:
    """Through srun, in requests and answers that run side by side."""
    data = base64.b64encode(os.urandom(600_000))
    cluster.run("sh", "-c", "cat > large", stdin=data)
    try:
        make = f"{cluster.HPK} kubectl -n {space.name} create configmap l$i --from-file=large"
        cluster.shell(f"for i in 1 2 3; do {make} & done; wait")
        for number in (1, 2, 3):
            path = "jsonpath={.data.large}"
            assert space.kubectl("get", "configmap", f"l{number}", "-o", path) == data.decode()
    finally:
        cluster.shell("rm large")


def test_connect_serves_any_program_while_it_runs(hpk: None) -> None:
    """The user's own context leads through it, and back when the session hangs up; no step stays."""
    server = "grep -o 'https://[^ ]*' ~/.kube/config"
    direct = cluster.shell(server)
    argv = [str(cluster.SITE), "run", "--user", cluster.USER, cluster.HOST, "--", cluster.HPK, "connect", "--port=7443"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as holding:
        assert holding.stdout is not None
        assert "by srun: https://127.0.0.1:7443" in holding.stdout.readline()
        assert cluster.shell(server) == "https://127.0.0.1:7443\n"
        # With the context named, kubectl goes where the user's own file says, as other programs do.
        asked = cluster.run(cluster.HPK, "kubectl", "--context=hpk", "get", "--raw", "/version")
        assert b"gitVersion" in asked.stdout
        again = cluster.run(cluster.HPK, "connect", code=None)
        assert again.returncode != 0
        assert b"runs on this host already" in again.stderr
        assert stranger(7443) == "401"
        holding.terminate()
    until(lambda: cluster.shell(server) == direct)
    until(lambda: not steps())
    until(lambda: cluster.shell("pgrep -u alice -a | grep -e '[.]pyz tunnel' -e '[s]run'; true") == "")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as killed:
        assert killed.stdout is not None
        assert killed.stderr is not None
        assert "https://127.0.0.1:7443" in killed.stdout.readline()
        cluster.run("pkill", "-KILL", "-f", "[.]pyz tunnel .*--hold")
        assert "The tunnel has ended" in killed.stderr.read()
    assert cluster.shell(server) == direct
    # Another takes the place of the one that could not remove its record.
    assert "Ready (cpu " in cluster.run(cluster.HPK, "status").stdout.decode()


def test_connect_goes_by_ssh_where_it_is_told_to(hpk: None) -> None:
    """With the site's own sshd; when the session hangs up, nothing stays on either host."""
    by_ssh = ("env", "HPK_CONNECT=ssh", cluster.HPK, "connect", "--port=7444")
    argv = [str(cluster.SITE), "run", "--user", cluster.USER, cluster.HOST, "--", *by_ssh]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as holding:
        assert holding.stdout is not None
        assert "by ssh: https://127.0.0.1:7444" in holding.stdout.readline()
        assert not steps()
        get = (cluster.HPK, "kubectl", "--context=hpk", "get")
        assert b"gitVersion" in cluster.run(*get, "--raw", "/version").stdout
        # Megabytes, in pieces that no line of a terminal would carry.
        assert len(cluster.run(*get, "--raw", "/openapi/v2").stdout) > 1_000_000
        holding.terminate()
    nothing_is_left()


def test_the_recipe_for_a_laptop(hpk: None) -> None:
    """As docs/connect.md has it, from a host that reaches the login node only by ssh."""
    laptop = "c2"
    cluster.shell(
        "(umask 077; ssh ctl .local/bin/hpk kubectl config view --raw --minify --flatten |"
        " sed 's|server: .*|server: https://127.0.0.1:7445|' > laptop.kubeconfig)",
        host=laptop,
    )
    by_ssh = ("ssh", "-tt", "-L", "7445:127.0.0.1:7445", "ctl", ".local/bin/hpk connect --port 7445")
    argv = [str(cluster.SITE), "run", "--user", cluster.USER, laptop, "--", *by_ssh]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as holding:
        assert holding.stdout is not None
        assert "https://127.0.0.1:7445" in holding.stdout.readline()
        asked = cluster.run(
            *(cluster.HPK, "kubectl", "--kubeconfig", "laptop.kubeconfig", "get", "nodes", "-o", "name"), host=laptop
        )
        assert asked.stdout == b"node/hpk\n"
        holding.terminate()
    nothing_is_left()
    cluster.shell("rm laptop.kubeconfig")


def nothing_is_left() -> None:
    """Of a tunnel that was held, and of what ssh started, on any host."""
    kinds = (r"[.]pyz tunnel .*--hold", "[s]shd-session: alice", "^ *[0-9]+ ssh ", r"^ *1 .*[.]pyz relay")
    left = f"ps -u alice -o ppid=,args= | grep -E '{'|'.join(kinds)}'; true"
    for host in ("ctl", "c1", "c2"):
        until(lambda host=host: cluster.shell(left, host=host) == "")  # type: ignore[misc]


def stranger(port: int) -> str:
    """What the API server answers to another user of the login node, or why it does not."""
    asking = f"curl -ks -o /dev/null -w '%{{http_code}}' https://127.0.0.1:{port}/api/v1/secrets"
    return cluster.run("sh", "-c", asking, user="bob", code=None).stdout.decode()


def test_doctor_says_what_to_do_instead(hpk: None) -> None:
    """No kubectl, filtered ports, a registry out of reach, few jobs at a time: no errors, and a way for each."""
    found = json.loads(cluster.run(cluster.HPK, "doctor", "--json", seconds=180).stdout)
    assert {one["level"] for one in found} <= {"note", "warning"}
    hows = {one["how"] for one in found if one["who"] == "you"}
    for words in ("use hpk kubectl", "'hpk connect' for other programs", "hpk pull IMAGE on the login host"):
        assert [how for how in hows if words in how], hows
    assert {one["where"].split(" (")[0] for one in found} >= {"partition main", "partition whole", "partition gpu"}


def test_nothing_stays_on_the_node(space: Namespace) -> None:
    """Also what the pod has closed to its owner: where all was killed at once, a later job of the user removes it."""
    space.apply(pod("gone", "mkdir -p /e/d/x; chmod 0 /e/d; sleep 600", context="{runAsUser: 1234}"))
    until(lambda: space.phase("gone") == "Running")
    uid, job = space.get("pod", "gone")["metadata"]["uid"], space.job("gone")
    cluster.run("scancel", "--full", "--signal=KILL", job)  # the agent has no time to do it
    until(lambda: space.phase("gone") == "Failed")
    for host in ("c1", "c2"):
        sweeper = "{" + f"name: {host}, annotations: {{slurm.hpk.io/flags: --nodelist={host}}}" + "}"
        space.apply(pod(host, "true").replace(f"{{name: {host}}}", sweeper))
        until(lambda host=host: not cluster.shell(f"ls -d /tmp/hpk-{uid}* 2>/dev/null; true", host=host))  # type: ignore[misc]


def test_exec_under_one_id(space: Namespace) -> None:
    """A command has the container's only user, whatever its number, in all of the container's namespaces."""
    space.apply(pod("p", "sleep 1000", context="{runAsUser: 1234, runAsGroup: 77}"))
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    same = "for n in /proc/1/ns/*; do [ $(readlink $n) = $(readlink /proc/self/ns/${n##*/}) ] || echo $n; done"
    found = space.kubectl("exec", "p", "--", "sh", "-c", f"id -u; id -g; echo mine > /e/file; {same}")
    assert found.splitlines() == ["1234", "77"]


def test_debug_under_one_id(space: Namespace) -> None:
    """In the processes of a root, of a user as the same, and of a user as root; another user is told why not."""
    sleeps = "trap exit TERM; while :; do sleep 0.2; done"
    for name, context in (("root", "{}"), ("user", "{runAsUser: 1234}")):
        space.apply(pod(name, sleeps, context=context))
    space.kubectl("wait", "pods", "--all", "--for=condition=Ready", "--timeout=300s")
    debug = (f"--image={cluster.REGISTRY}/busybox:1", "--target=c", "-q")
    for name, uid in (("root", "0"), ("user", "1234")):
        space.kubectl("debug", name, *debug, "-c", "d", "--", "sh", "-c", "id -u; ps")
        until(lambda name=name: "PID" in space.kubectl("logs", name, "-c", "d", code=None))  # type: ignore[misc]
        found = space.kubectl("logs", name, "-c", "d")
        assert found.splitlines()[0] == uid
        assert sleeps in found
    other = json.dumps({"securityContext": {"runAsUser": 5}})
    cluster.shell(f"echo '{other}' > $HOME/other.json")
    space.kubectl("debug", "root", *debug, "-c", "e", "--custom=/home/alice/other.json", "--", "true")
    path = "jsonpath={.status.ephemeralContainerStatuses[?(@.name=='e')].state.terminated.message}"
    until(lambda: space.kubectl("get", "pod", "root", "-o", path))
    said = space.kubectl("get", "pod", "root", "-o", path)
    assert said.startswith("Cannot share the processes of container c, whose user is 0, as user 5: a pod has one id")
