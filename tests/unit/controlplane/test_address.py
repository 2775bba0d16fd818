"""Which of a host's addresses the others get."""

from __future__ import annotations

import pytest

from hpk import errors
from hpk.controlplane import address


def test_the_name_comes_before_the_route() -> None:
    """What our name means is what other nodes use; a default route may lead out of the cluster."""
    ours = ["127.0.0.1", "10.0.0.5", "198.51.100.5"]
    assert address.choose(by_name=["10.0.0.5"], by_route="198.51.100.5", ours=ours) == "10.0.0.5"


@pytest.mark.parametrize("useless", [[], ["127.0.1.1"], ["10.9.9.9"], ["169.254.0.1"]])
def test_a_useless_name_gives_way(useless: list[str]) -> None:
    """Debian's 127.0.1.1, a stale DNS entry and a link-local address are passed over."""
    ours = ["127.0.0.1", "127.0.1.1", "169.254.0.1", "10.0.0.5"]
    assert address.choose(by_name=useless, by_route="10.0.0.5", ours=ours) == "10.0.0.5"


def test_without_name_and_route_any_good_one_does() -> None:
    """A node of a closed cluster may have no default route."""
    assert address.choose(by_name=[], by_route=None, ours=["127.0.0.1", "10.0.0.5"]) == "10.0.0.5"


def test_none_is_told_with_the_setting() -> None:
    """A host that others cannot reach is refused, with what it has and what to set."""
    with pytest.raises(errors.Fatal, match=r"known: 127\.0\.0\.1.*HPK_ADDRESS"):
        address.choose(by_name=["127.0.1.1"], by_route=None, ours=["127.0.0.1"])


def test_a_wanted_address_must_be_ours() -> None:
    """A setting copied to another host is refused by name; loopback is fine if one asks for it."""
    assert address.find(wanted="127.0.0.1") == "127.0.0.1"
    with pytest.raises(errors.Fatal, match=r"'192\.0\.2\.99'.*not an IPv4 address of this host"):
        address.find(wanted="192.0.2.99")
