"""Sessions into pods, as users have them: exec, attach, cp and port-forward, through the real API server."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e import conftest
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

HERE = cluster.ROOT / "tests/e2e"
SERVER = """
import hashlib, socket, threading
def serve(c):
    data = b"".join(iter(lambda: c.recv(1 << 16), b""))
    c.sendall(hashlib.sha256(data).hexdigest().encode() + b"\\n" + data)
    c.close()
listening = socket.create_server(("127.0.0.1", 7000), backlog=100)
while True:
    threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()
"""
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {
                "name": "c",
                "image": "${REGISTRY}/busybox:1",
                "command": ["sleep", "36000"],
                # Two hundred sessions are four hundred processes of the job, which Slurm adds up.
                "resources": {"limits": {"memory": "2Gi"}},
            },
            {
                "name": "web",
                "image": "${REGISTRY}/agnhost:2",
                "args": ["netexec", "--http-port=18220", "--udp-port=-1"],
            },
            {"name": "server", "image": "${REGISTRY}/python:3", "command": ["python3", "-c", SERVER]},
        ],
    },
}
PROTOCOLS = {
    "websocket": "",
    "spdy": "export KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false KUBECTL_PORT_FORWARD_WEBSOCKETS=false; ",
}
MEGABYTES = 100


class Pod:
    """The pod, in a namespace of its own."""

    def __init__(self, space: conftest.Namespace) -> None:
        self.space = space

    def shell(
        self, text: str, *, protocol: str = "websocket", code: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        """A line of shell on the login host, in which ``$K`` is kubectl in the namespace."""
        line = f"{PROTOCOLS[protocol]} K='kubectl -n {self.space.name}'; {text}"
        done = cluster.run("bash", "-c", line, code=code)
        return subprocess.CompletedProcess([], done.returncode, done.stdout.decode(), done.stderr.decode())

    def python(self, *what: str) -> Any:
        """What the Python client finds, by name, from the login host's network."""
        kubeconfig = cluster.shell("cat ~/.kube/config").encode()
        argv = ["ip", "netns", "exec", "hpk-site-ctl", sys.executable, str(HERE / "streams_client.py")]
        done = subprocess.run(
            [*argv, ",".join(what), self.space.name], input=kubeconfig, capture_output=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def pod(hpk: None) -> Iterator[Pod]:
    """One pod for all tests here."""
    space = conftest.Namespace(f"t-streams-{secrets.token_hex(2)}")
    cluster.kubectl("create", "namespace", space.name)
    until(lambda: space.get("serviceaccount", "default"))
    space.apply(json.dumps(POD))
    space.kubectl("wait", "pod/p", "--for=condition=Ready", "--timeout=300s")
    yield Pod(space)
    space.remove()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exec(pod: Pod, protocol: str) -> None:
    """Outputs apart, the exit code, arguments byte for byte, input with -i, and a command that is not there."""
    done = pod.shell("$K exec p -c c -- sh -c 'echo out; echo err >&2; exit 42'", protocol=protocol, code=42)
    assert done.stdout == "out\n"
    assert done.stderr.startswith("err\n")
    assert pod.shell("$K exec p -c c -- printf '%s|' 'a b' '' '*'", protocol=protocol).stdout == "a b||*|"
    assert pod.shell("printf 'no end' | $K exec -i p -c c -- cat", protocol=protocol).stdout == "no end"
    assert pod.shell("$K exec p -c c -- cat </dev/zero", protocol=protocol).stdout == ""
    missing = pod.shell("$K exec p -c c -- /no/such", protocol=protocol, code=127)
    assert "/no/such" in missing.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_exec_in_a_terminal(pod: Pod, protocol: str) -> None:
    """-it has a terminal, of the user's size from the start."""
    line = "script -qec \"stty rows 31 cols 101; $K exec -it p -c c -- sh -c 'tty; stty size; exit 5'\" /dev/null"
    done = pod.shell(f"{line} </dev/null", protocol=protocol, code=5)
    assert "/dev/pts/" in done.stdout
    assert "31 101" in done.stdout


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_byte_of_a_large_stream(pod: Pod, protocol: str) -> None:
    """100 MB in and out again, and one way each."""
    made = pod.shell(
        f"set -e; head -c {MEGABYTES}000000 /dev/urandom > large; $K exec -i p -c c -- cat < large | cmp - large;"
        " $K exec -i p -c c -- sh -c 'cat > /tmp/large' < large; $K exec p -c c -- cat /tmp/large | cmp - large;"
        " echo same",
        protocol=protocol,
    )
    assert made.stdout == "same\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_slow_reader_gets_all(pod: Pod, protocol: str) -> None:
    """The program ends long before its last bytes are read."""
    done = pod.shell("$K exec p -c c -- head -c 30000000 /dev/zero | (sleep 3; wc -c)", protocol=protocol)
    assert done.stdout.strip() == "30000000"


def test_a_client_that_never_reads_costs_little(pod: Pod) -> None:
    """Neither the kubelet's memory nor anybody else's session; when it goes, so does its program."""
    resident = (
        "ps -eo rss=,args= | grep 'python3.* /opt/hpk/bin/hpk [s]erve' | sort -n | tail -1 | sed 's/^ *//; s/ .*//'"
    )
    host = cluster.shell("squeue -h --me -n hpk -o %N").strip()
    before = int(cluster.shell(resident, host=host))
    stalled = "(timeout -s KILL 600 $K exec p -c c -- cat /dev/zero | sleep 601) >/dev/null 2>&1 &"
    pod.shell(f"for i in 1 2 3 4 5; do {stalled} done")
    until(lambda: pod.shell("$K exec p -c c -- ps -o args").stdout.count("cat /dev/zero\n") == 5)
    time.sleep(5)  # as much as it will ever be
    assert pod.shell("timeout 60 $K exec p -c c -- echo fine").stdout == "fine\n"
    assert int(cluster.shell(resident, host=host)) - before < 150_000
    pod.shell(f"pkill -KILL -f '^kubectl -n {pod.space.name} exec p -c c -- cat /dev/zero'; pkill -x -f 'sleep 601'")
    until(lambda: "cat /dev/zero" not in pod.shell("$K exec p -c c -- ps -o args", code=None).stdout)


def test_cp_both_ways(pod: Pod) -> None:
    """A folder with a link there, and a file back."""
    done = pod.shell(
        "set -e; rm -rf d back; mkdir d; head -c 3000000 /dev/urandom > d/in; ln -s in d/link; $K cp d p:/d -c c;"
        " $K cp p:/d/in back -c c >/dev/null; cmp d/in back; $K exec p -c c -- readlink /d/link"
    )
    assert done.stdout == "in\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_port_forward(pod: Pod, protocol: str) -> None:
    """Many at once, a large one, half-closes, one that hangs beside others, and a port where nobody listens."""
    script = (HERE / "streams_forward.py").read_bytes()
    cluster.run("bash", "-c", "cat > streams_forward.py", stdin=script)
    found = json.loads(pod.shell(f"python3 streams_forward.py {pod.space.name}", protocol=protocol).stdout)
    words = found.pop("words")
    assert found == {"many": 80, "large": True, "beside": True, "refused": ""}
    assert "error forwarding port 7001 to pod p" in words
    assert "refused" in words


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_attach(pod: Pod, protocol: str) -> None:
    """Input for a container that reads it, its answers, and its end."""
    name = f"ask-{protocol}"
    container = {
        "name": "c",
        "image": "${REGISTRY}/busybox:1",
        "stdin": True,
        "stdinOnce": True,
        "command": ["sh", "-c", "while read -r l; do echo got $l; done; echo end"],
    }
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    pod.space.apply(json.dumps({**POD, "metadata": {"name": name}, "spec": spec}))
    until(lambda: pod.space.phase(name) == "Running")
    done = pod.shell(f"printf 'one\\ntwo\\n' | $K attach -i {name}", protocol=protocol)
    assert done.stdout == "got one\ngot two\nend\n"
    until(lambda: pod.space.phase(name) == "Succeeded")


def test_input_that_ends_lets_the_client_go(pod: Pod) -> None:
    """Of a container whose input stays open: the client returns, what it said was read, and the container runs on."""
    run = "run open --image=ctl:5000/busybox:1 --restart=Never --attach --stdin --leave-stdin-open -- cat"
    done = pod.shell(f"echo said | timeout 60 $K {run}")
    assert "falling back" not in done.stderr
    until(lambda: pod.shell("$K logs open").stdout == "said\n")
    assert pod.space.phase("open") == "Running"
    pod.shell("$K delete pod open --now --wait=false")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_long_command(pod: Pod, protocol: str) -> None:
    """Its arguments are in the request's first line, all the way."""
    done = pod.shell("$K exec p -c c -- echo $(head -c 100000 /dev/zero | tr '\\0' a) | wc -c", protocol=protocol)
    assert done.stdout == "100001\n"


def test_the_python_client(pod: Pod) -> None:
    """Its stream(): outputs and exit code, a conversation, a terminal, a message of 32 MB, forwarded ports."""
    found = pod.python("plain", "interactive", "terminal", "large", "forward")
    assert found["plain"] == {"stdout": "out\n", "stderr": "err\n", "code": 7, "all": "a  b $HOME\n"}
    assert found["interactive"] == {"lines": ["first", "second", "end\n"], "code": 0}
    assert found["terminal"] == {"sizes": ["30 100", "40 120"], "code": 3}
    assert found["large"] == {"sum": "2c6da963315f16a8323aa3d81b488149", "code": 0}
    forward = found["forward"]
    assert (forward["answer"], forward["nothing"]) == ("hello", True)
    assert "refused" in forward["error"]


def test_the_oldest_websocket_protocols(pod: Pod) -> None:
    """Without a name, and with each of the old ones: outputs on their channels, the end as text or as an object."""
    found = pod.python("protocols")["protocols"]
    for protocol, channels in found.items():
        assert (channels["1"], channels["2"]) == ("out\n", "err\n")
        if protocol.startswith("v4"):
            assert json.loads(channels["3"])["details"]["causes"] == [{"reason": "ExitCode", "message": "3"}]
        else:
            assert channels["3"].endswith("exit status 3")


def test_two_hundred_sessions_at_once(pod: Pod) -> None:
    """All open side by side, each with its own words and its own end."""
    assert pod.python("many")["many"] == [f"{index} 0" for index in range(200)]


def test_who_may_not_gets_nothing(pod: Pod) -> None:
    """A service account without rights is refused by the API server, and by the kubelet itself."""
    token = pod.space.kubectl("create", "token", "default").strip()
    port = cluster.get("node", "hpk")["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    address = cluster.get("node", "hpk")["status"]["addresses"][0]["address"]
    base = f"https://{address}:{port}"
    for path in ("/exec/a/p/c", "/attach/a/p/c", "/portForward/a/p", "/run/a/p/c", "/configz", "/runningpods/"):
        for header, code in ((f"Authorization: Bearer {token}", "403"), ("X: y", "401")):
            line = f"curl -sk -o /dev/null -w '%{{http_code}}' -X POST -H '{header}' {base}{path}"
            assert cluster.shell(line) == code, path
