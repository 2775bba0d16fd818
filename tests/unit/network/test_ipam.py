"""Which address a pod gets on a network that HPK makes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from hpk import errors
from hpk.network import ipam


def test_a_pod_keeps_its_address_and_shares_it_with_none() -> None:
    """Asked again it is the same; a hundred pods in a network of 253 have a hundred addresses."""
    pods: dict[str, Any] = {f"u-{number}": {} for number in range(100)}
    book = ipam.Addresses("10.9.0.0/24", pods=lambda: pods)
    given = [book.give(uid) for uid in pods]
    assert [book.give(uid) for uid in pods] == given
    assert len({address["ip"] for address in given}) == 100
    reserved = {"10.9.0.0", "10.9.0.1", "10.9.0.255"}
    assert not reserved & {address["ip"] for address in given}
    assert all(IPv4Address(address["ip"]) in IPv4Network("10.9.0.0/24") for address in given)
    assert {(address["prefix_length"], address["gateway"]) for address in given} == {(24, "10.9.0.1")}


def test_what_a_status_shows_is_taken_after_a_restart() -> None:
    """A new kubelet knows the running pods' addresses only from their status."""
    first = ipam.Addresses("10.9.0.0/29", pods=dict).give("u-1")["ip"]
    running = {"old": {"status": {"podIP": first}}, "u-1": {}}
    assert ipam.Addresses("10.9.0.0/29", pods=lambda: running).give("u-1")["ip"] != first


def test_a_plans_address_is_taken_after_a_restart() -> None:
    """A pod whose job still waits shows no address, and its plan is written: nobody else gets what it will use."""
    first = ipam.Addresses("10.9.0.0/29", pods=dict).give("u-1")["ip"]
    book = ipam.Addresses("10.9.0.0/29", pods=lambda: {"old": {}, "u-1": {}})
    book.keep("old", first)
    assert book.give("u-1")["ip"] != first
    assert book.give("old")["ip"] == first


@pytest.mark.parametrize("text", ["", "fe80::1", "10.8.0.5", "10.9.0.0", "10.9.0.1", "10.9.0.7"])
def test_what_is_no_address_of_a_pod_is_not_kept(text: str) -> None:
    """A host's address, say, in the status of a pod on the host's network."""
    book = ipam.Addresses("10.9.0.0/29", pods=lambda: {"old": {"status": {"podIP": text}}})
    assert len({book.give(f"u-{number}")["ip"] for number in range(5)}) == 5


def test_each_address_costs_no_look_at_all_pods() -> None:
    """A thousand pods are given theirs by a handful of looks."""
    pods: dict[str, Any] = {f"u-{number}": {} for number in range(1000)}
    counted = Pods(pods)
    book = ipam.Addresses("10.8.0.0/16", pods=lambda: counted)
    assert len({book.give(uid)["ip"] for uid in pods}) == 1000
    assert counted.walks == 1


class Pods(dict[str, Any]):
    """Counts how often all pods are gone through."""

    walks = 0

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def test_addresses_of_pods_that_are_gone_are_free_again() -> None:
    """A network is full only while its pods exist, and then says which setting makes it larger."""
    pods: dict[str, Any] = {f"u-{number}": {} for number in range(5)}
    book = ipam.Addresses("10.9.0.0/29", pods=lambda: pods)
    assert len({book.give(uid)["ip"] for uid in pods}) == 5
    with pytest.raises(errors.Retryable, match="HPK_POD_CIDR"):
        book.give("one more")
    del pods["u-3"]
    book.give("one more")
