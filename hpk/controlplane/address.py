"""The address of this host that the cluster's other nodes can reach.

A node often has several addresses: Ethernet, InfiniBand, a public one, Flannel's bridge. The other nodes and Slurm use
the address that its host name resolves to, so that is preferred to the default route's.
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
"""A documentation address: connecting a UDP socket looks up the route and sends nothing."""


def find(*, wanted: str = "") -> str:
    """Return the address for others.

    If `wanted` (the setting ``address``, HPK_ADDRESS) is not empty, it must be an address of this host.

    Raises:
        errors.Fatal: No address was found, or the wanted one is not ours.
    """
    ours = _of_interfaces()
    if wanted:
        if wanted not in ours:
            raise errors.Fatal(
                f"Cannot use the address '{wanted}': it is not an IPv4 address of this host (known: {', '.join(ours)})"
            )
        return wanted
    return choose(by_name=_of_name(socket.gethostname()), by_route=_of_default_route(), ours=ours)


def choose(*, by_name: Iterable[str], by_route: str | None, ours: Iterable[str]) -> str:
    """Return the best candidate: what our name resolves to, else the default route's, else any of ours.

    Raises:
        errors.Fatal: No candidate can be reached by others.
    """
    ours = list(ours)
    for address in (*by_name, *([by_route] if by_route else []), *ours):
        if address in ours and _is_for_others(address):
            return address
    raise errors.Fatal(
        "Cannot find an IPv4 address of this host that other nodes could reach "
        f"(known: {', '.join(ours) or 'none'}); set HPK_ADDRESS"
    )


def host_names() -> tuple[str, ...]:
    """Return this host's names, full and short."""
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
