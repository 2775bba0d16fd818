"""A pod's hosts file and resolv.conf are what the kubelet would write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import jobdir
from hpk.agent.boot import etc, sandbox

if TYPE_CHECKING:
    from hpk import records

NODE = """# of the node
domain example.org
nameserver 10.0.0.1
nameserver
search first.example
search lab.example. . corp.example
options ndots:1 timeout:3
options edns0
"""


def added(
    *servers: str, searches: tuple[str, ...] = (), options: tuple[tuple[str, str | None], ...] = ()
) -> records.Dns:
    """What a pod adds."""
    return {"nameservers": [*servers], "searches": [*searches], "options": [*options]}


def test_what_a_pod_adds_is_merged_with_the_nodes() -> None:
    """Servers and searches behind the node's, each once; options of a name replace the node's."""
    more = added("192.0.2.53", "10.0.0.1", searches=("mine", "lab.example"), options=(("ndots", "5"), ("rotate", None)))
    text, left_out = etc.resolv_conf(NODE, more)
    assert text == (
        "nameserver 10.0.0.1\nnameserver 192.0.2.53\nsearch lab.example corp.example mine\n"
        "options ndots:5 timeout:3 edns0 rotate\n"
    )
    assert left_out == []


def test_a_pod_of_its_own_dns_has_nothing_else() -> None:
    """With dnsPolicy None the base is empty."""
    assert etc.resolv_conf("", added("192.0.2.53"))[0] == "nameserver 192.0.2.53\n"


def test_what_no_resolver_takes_is_left_out_and_said() -> None:
    """Three servers, 32 search paths, none over 253 characters, 2,048 in all: the kubelet's limits and words."""
    text, (servers, searches) = etc.resolv_conf("", added("1", "2", "3", "4", searches=("x" * 254, "short")))
    assert text == "nameserver 1\nnameserver 2\nnameserver 3\nsearch short\n"
    assert servers.startswith("Nameserver limits were exceeded")
    assert servers.endswith("line is: 1 2 3")
    assert searches.endswith("some search paths have been omitted, the applied search line is: short")
    many, _ = etc.resolv_conf("", added(searches=tuple(f"d{number}" for number in range(40))))
    assert len(many.split()) == 33
    long, _ = etc.resolv_conf("", added(searches=tuple(f"{number}{'x' * 250}" for number in range(9))))
    assert len(long.split()) == 9


def test_the_nodes_own_hosts_stand_where_the_plan_says() -> None:
    """Only pods of the host's network have them."""
    assert etc.hosts(f"# head\n{jobdir.NODE_HOSTS}# tail\n", node="10.0.0.1\tc1\n") == "# head\n10.0.0.1\tc1\n# tail\n"
    assert etc.hosts("# head\n", node="10.0.0.1\tc1\n") == "# head\n"


def test_a_sandbox_has_the_files_that_its_plan_says(tmp_path: Path) -> None:
    """With the address that only the job knows, and the node's own hosts."""
    plan: Any = {
        "network": "flannel",
        "hostname": "web",
        "hosts": f"{jobdir.NODE_HOSTS}{jobdir.HOST_IP}\tnode\n",
        "resolv_conf": "nameserver 10.0.0.1\n",
        "dns": added("192.0.2.53"),
    }
    box = sandbox.PodSandbox(plan, sandbox.JobFacts(["host_ip=10.0.0.7"]), places=sandbox.Places(scratch=str(tmp_path)))
    directory = tmp_path / "private/etc"
    directory.mkdir(parents=True)
    box._write_etc()
    assert (directory / "hosts").read_text() == Path("/etc/hosts").read_text() + "10.0.0.7\tnode\n"
    assert (directory / "hostname").read_text() == "web\n"
    assert (directory / "resolv.conf").read_text() == "nameserver 10.0.0.1\nnameserver 192.0.2.53\n"
