"""How a pod's network is connected, and where its names are looked up; what the kernel does is for tests/e2e."""

from __future__ import annotations

from typing import Any

from hpk.agent import namespaces, sandbox

ADDRESS: Any = {"ip": "10.244.3.7", "prefix_length": 16, "gateway": "10.244.0.1"}


def test_pasta_s_command_is_this_one() -> None:
    """Out by every port, in by none, nothing of the node's loopback; the user namespace joined if it is another."""
    assert namespaces.pasta(ADDRESS, process=1, has_one_id=True) == [
        *("/usr/bin/pasta", "--quiet", "--config-net", "--ipv4-only"),
        *("--address", "10.244.3.7", "--netmask", "16", "--gateway", "10.244.0.1", "--dns-forward", "10.244.0.1"),
        "--no-map-gw",
        *("--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none"),
        "1",
    ]
    assert "--netns-only" in namespaces.pasta(ADDRESS, process=1, has_one_id=False)


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
