"""This host's address that the other nodes of the cluster can reach.

A node of a cluster often has several: Ethernet, InfiniBand, a public one, Flannel's bridge.  What its own
name means is what the other nodes use, and Slurm too, so that comes before the default route's.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

import psutil

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Iterable

_ELSEWHERE = ("192.0.2.1", 9)
"""A documentation address: connecting a UDP socket asks the routing table and sends nothing."""


def find(*, wanted: str = "") -> str:
    """The address to give to others.

    The setting ``address`` (HPK_ADDRESS) must be one of this host if it is not empty.

    Raises:
        errors.Fatal: None found, or the wanted one is not ours.
    """
    ours = _of_interfaces()
    if wanted:
        if wanted not in ours:
            raise errors.Fatal(
                f"Cannot use the address '{wanted}': not an IPv4 address of this host ({', '.join(ours)})"
            )
        return wanted
    return choose(by_name=_of_name(socket.gethostname()), by_route=_of_default_route(), ours=ours)


def choose(*, by_name: Iterable[str], by_route: str | None, ours: Iterable[str]) -> str:
    """The best of what was found: what our name means, else the default route's, else any that is ours.

    Raises:
        errors.Fatal: None is good for others.
    """
    ours = list(ours)
    for address in (*by_name, *([by_route] if by_route else []), *ours):
        if address in ours and _is_for_others(address):
            return address
    raise errors.Fatal(
        "Cannot find an IPv4 address of this host that other nodes could reach "
        f"(have: {', '.join(ours) or 'none'}); set HPK_ADDRESS"
    )


def host_names() -> tuple[str, ...]:
    """What this host calls itself, in full and in short."""
    name = socket.gethostname()
    return tuple(dict.fromkeys((name, name.split(".")[0])))


def _is_for_others(address: str) -> bool:
    parsed = ipaddress.ip_address(address)
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified or parsed.is_multicast)


def _of_interfaces() -> list[str]:
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    return [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if name in up and address.family == socket.AF_INET
    ]


def _of_name(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return [str(entry[4][0]) for entry in found]


def _of_default_route() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(_ELSEWHERE)
        except OSError:
            return None
        return str(asking.getsockname()[0])
