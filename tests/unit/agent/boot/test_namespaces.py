"""How a pod's network is connected, and where its names are looked up; what the kernel does is for tests/e2e."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpk.agent.boot import namespaces, sandbox

ADDRESS: Any = {"ip": "10.244.3.7", "prefix_length": 16, "gateway": "10.244.0.1"}


def test_pasta_s_command_is_this_one() -> None:
    """Out by every port, in by none, nothing of the node's loopback."""
    assert namespaces.pasta(ADDRESS, target=["1"]) == [
        *("/usr/bin/pasta", "--quiet", "--config-net", "--ipv4-only"),
        *("--address", "10.244.3.7", "--netmask", "16", "--gateway", "10.244.0.1", "--dns-forward", "10.244.0.1"),
        "--no-map-gw",
        *("--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"),
        "1",
    ]


@pytest.mark.parametrize("has_one_id", [True, False])
def test_pasta_is_told_of_the_namespaces_in_a_way_that_works(has_one_id: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a table
    """It joins the user namespace of a process, or finds open what it may not open where it stays in its own."""
    said, says = os.pipe()
    ready, done = os.pipe()
    monkeypatch.setattr(namespaces, "PASTA", "/bin/sh")
    script = "echo $(readlink /proc/self/fd/0) $*"
    monkeypatch.setattr(namespaces, "pasta", lambda _address, *, target: ["/bin/sh", "-c", script, "sh", *target])
    if (helper := os.fork()) == 0:
        os.dup2(says, 1)
        namespaces._attach(ADDRESS, ready, has_one_id=has_one_id)
    os.write(done, b"\0")
    namespaces.attached(helper)
    words = os.read(said, 1000).decode().split()
    if has_one_id:
        assert words[-1:] == [str(os.getpid())]
    else:
        assert words == [
            str(Path("/proc/self/ns/net").readlink()),
            *("--netns-only", "--no-netns-quit", "--netns", "/proc/self/fd/0"),
        ]
    for descriptor in (said, says, ready, done):
        os.close(descriptor)


def test_nothing_is_made_where_apptainer_has_made_it() -> None:
    """With Flannel, or the host's network, and subordinate ids."""
    plan: Any = {"network": "flannel", "has_one_id": False}
    assert namespaces.enter(plan) == 0
    namespaces.attached(0)


def test_a_name_server_on_the_node_s_loopback_is_reached_through_the_gateway() -> None:
    """Others stay as they are."""
    text = "nameserver 127.0.0.53\nnameserver 10.0.0.2\noptions edns0\n"
    assert sandbox.reachable_servers(text, instead="10.244.0.1") == (
        "nameserver 10.244.0.1\nnameserver 10.0.0.2\noptions edns0\n"
    )
