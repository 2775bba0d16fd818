"""What breaks under open sessions: the kubelet, and the link between it and a pod's agent."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster
from tests.e2e.conftest import until
from tests.e2e.faults import pods
from tests.e2e.test_faults_cluster import other
from tests.e2e.test_pods import where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e import conftest

pytestmark = [pytest.mark.cluster, pytest.mark.destructive, pytest.mark.timeout(400)]

CUT_SECONDS = 60
LOST = "the connection to the pod's agent was lost"
COUNT = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.5; done"
# In the directory `sessions`: for each command NAME.out, NAME.err, and, when it has ended, NAME.code.
OPEN = r"""
set -e
rm -rf sessions; mkdir sessions; cd sessions
run() { code=0; "$@" >$name.out 2>$name.err || code=$?; echo $code >$name.code; }
keep() { name=$1; shift; (trap '' HUP; run "$@") </dev/null >/dev/null 2>&1 & }
keep exec $K exec p -c c -- sleep 777
keep logs $K logs -f p -c counts
keep forward $K port-forward p :18220
until port=$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' forward.out) && [ -n "$port" ]; do sleep 0.1; done
keep held bash -c "exec 5<>/dev/tcp/127.0.0.1/$port; printf half >&5; cat <&5"
until [ -s logs.out ] && grep -q Handling forward.out; do sleep 0.1; done
until $K exec p -c c -- ps -o args | grep -q '[s]leep 777'; do sleep 0.1; done
"""
AGAIN = r"""
$K exec p -c c -- echo fine
timeout 20 $K logs -f --tail=1 p -c counts | head -n 3 | wc -l
$K port-forward p :18220 >again.out 2>&1 & forward=$!
for i in $(seq 200); do grep -q Forwarding again.out && break; sleep 0.1; done
curl -s "http://127.0.0.1:$(sed -n 's/^Forwarding from 127.0.0.1:\([0-9]*\) .*/\1/p' again.out)/echo?msg=back"
kill $forward
"""


class Pod:
    """The pod, and what its user has open: exec, logs -f, and port-forward with a connection that waits."""

    def __init__(self, space: conftest.Namespace) -> None:
        self.space = space
        self.job = ""

    def start(self, *, ends_after_seconds: float) -> None:
        """Run it, on the node where the control plane is not; its container ``ends`` ends after so long with code 3."""
        image = "${REGISTRY}/busybox:1"
        containers: list[dict[str, Any]] = [
            {"name": "c", "image": image, "command": ["sleep", "36000"]},
            {"name": "counts", "image": image, "command": ["sh", "-c", COUNT]},
            {"name": "ends", "image": image, "command": ["sh", "-c", f"sleep {ends_after_seconds}; exit 3"]},
            {
                "name": "web",
                "image": "${REGISTRY}/agnhost:2",
                "args": ["netexec", "--http-port=18220", "--udp-port=-1"],
            },
        ]
        made = json.loads(pods.pod("p", flags=f"--nodelist={other()}"))
        made["spec"] |= {"containers": containers, "terminationGracePeriodSeconds": 1}
        self.space.apply(json.dumps(made))
        until(lambda: self.space.phase("p") == "Running")
        self.job = self.space.job("p")

    def shell(self, text: str) -> str:
        """What a line of shell prints on the login host, in which ``$K`` is kubectl in the namespace."""
        line = f"K='kubectl -n {self.space.name}'; {text}"
        return cluster.run("bash", "-c", line, code=None).stdout.decode()

    def open(self) -> None:
        """Open all sessions, and see them work."""
        cluster.run("bash", "-c", f"K='kubectl -n {self.space.name}'; {OPEN}")

    def ended(self, name: str) -> tuple[int, str] | None:
        """A command's exit code and what it said, if it has ended."""
        code, _, said = cluster.shell(f"cd sessions; cat {name}.code {name}.err 2>/dev/null; true").partition("\n")
        return (int(code), said) if code.isdecimal() else None

    def is_whole(self) -> bool:
        """Whether its first job still runs it, and no container has been started again."""
        status = self.space.get("pod", "p")["status"]
        restarts = [one["restartCount"] for one in status["containerStatuses"]]
        return (status["phase"], restarts, self.space.job("p")) == ("Running", [0] * 4, self.job)

    def works_again(self) -> bool:
        """Whether new sessions of each kind do what they should, and nothing is left of the old ones."""
        is_well = self.shell(AGAIN) == "fine\n3\nback"
        return is_well and "sleep 777" not in self.shell("$K exec p -c c -- ps -o args")

    def count(self) -> int:
        """How far its counter has come: no number is missing, nor there twice."""
        counted = self.shell("$K logs p -c counts").split()
        assert counted == [str(number) for number in range(len(counted))]
        return len(counted)

    def end_of_the_one_that_ends(self) -> int | None:
        """The exit code that its status shows."""
        statuses = self.space.get("pod", "p")["status"]["containerStatuses"]
        (state,) = [one["state"] for one in statuses if one["name"] == "ends"]
        code: int | None = state.get("terminated", {}).get("exitCode")
        return code


@pytest.fixture
def pod(space: conftest.Namespace) -> Iterator[Pod]:
    """Nothing runs yet; what is open is closed afterwards, and a control plane is there."""
    yield Pod(space)
    if not cluster.is_running():
        cluster.start()
    cluster.shell(f"pkill -f '^kubectl -n {space.name} '; rm -rf sessions; true")


def test_a_kubelet_that_is_killed(pod: Pod) -> None:
    """All clients hear it; the exec'd program is gone, the pod is not, and everything works again."""
    pod.start(ends_after_seconds=0)
    pod.open()
    before = pod.count()
    cluster.run("scancel", "--full", "--signal=KILL", "--name=hpk", "--me")
    for name in ("exec", "logs", "forward", "held"):
        code, said = until(lambda name=name: pod.ended(name), seconds=120)  # type: ignore[misc]
        # An API server that outlives the kubelet by a moment ends the logs as if they were at their end.
        is_clean = (code, said) == (0, "")
        assert is_clean if name == "held" else (code and said) or (is_clean and name == "logs"), name
    cluster.start()
    until(pod.works_again)
    assert pod.is_whole()
    assert pod.count() > before + 10


@pytest.fixture
def link(pod: Pod) -> Iterator[Link]:
    """The link, whole again afterwards."""
    made = Link()
    yield made
    made.mend()


class Link:
    """The way between agents and the kubelet, where packets can be made to vanish."""

    def __init__(self) -> None:
        self._host = where()
        self._port = json.loads(cluster.shell("cat ~/.hpk/run/endpoint.json"))["port"]

    def cut(self) -> None:
        """No packet passes, and nobody is told."""
        chains = "".join(
            f"chain {hook} {{ type filter hook {hook} priority 0; tcp {end} {self._port} drop; }}\n"
            for hook, end in (("input", "dport"), ("output", "sport"))
        )
        cluster.run("nft", "-f", "-", stdin=f"table inet cut {{\n{chains}}}\n".encode(), host=self._host, user="root")

    def mend(self) -> None:
        """All pass again."""
        cluster.run("nft", "delete", "table", "inet", "cut", host=self._host, user="root", code=None)


def test_the_link_is_cut_for_a_minute(pod: Pod, link: Link) -> None:
    """Sessions end in clear words, nothing else does: what happens is told, logs go on, all comes back by itself."""
    pod.start(ends_after_seconds=120)
    pod.open()
    link.cut()
    began = time.monotonic()
    code, said = until(lambda: pod.ended("exec"), seconds=120)
    assert (code, LOST in said) == (1, True), said
    code, said = until(lambda: pod.ended("forward"), seconds=120)
    assert (code, "error forwarding port 18220 to pod p, uid " in said, LOST in said) == (1, True, True), said
    assert until(lambda: pod.ended("held"), seconds=120) == (0, "")
    refused = cluster.run("kubectl", "-n", pod.space.name, "exec", "p", "-c", "c", "--", "true", code=1)
    assert b"its agent is not connected now" in refused.stderr
    before = pod.count()
    until(lambda: pod.end_of_the_one_that_ends() == 3)
    until(lambda: pod.count() > before)
    assert pod.ended("logs") is None
    time.sleep(max(0, CUT_SECONDS - (time.monotonic() - began)))
    assert pod.is_whole()
    link.mend()
    until(pod.works_again)
    assert pod.ended("logs") is None
    assert pod.is_whole()
