"""Chooses the pods' addresses in network mode ``overlay``, in the kubelet: unique within ``HPK_POD_CIDR``."""

from __future__ import annotations

import hashlib
from ipaddress import AddressValueError, IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk import records

SPARE = 128
"""Addresses of deleted pods that may be held, in addition to as many as there are pods."""


class Addresses:
    """Addresses by pod UID, as numbers within the network.

    After a restart a pod's address is in its status, or in its plan while its job waits (see `keep`).
    """

    def __init__(self, cidr: str, *, pods: Callable[[], Mapping[str, dict[str, Any]]]) -> None:
        """Take the pods' network, whose first address is the gateway, and the node's pods by UID."""
        self._network = IPv4Network(cidr)
        self._pods = pods
        self._given: dict[str, int] = {}
        self._taken: set[int] = set()
        self._has_read_statuses = False

    def give(self, uid: str) -> records.Address:
        """Return the pod's address, the same each time; the first choice depends on the UID alone.

        Raises:
            errors.Retryable: The network is full.
        """
        self._read_statuses()
        if uid not in self._given:
            if len(self._given) > 2 * len(self._pods()) + SPARE:
                self._let_go(uid)
            self._hold(uid, self._free(uid))
        return {
            "ip": str(self._network[self._given[uid]]),
            "prefix_length": self._network.prefixlen,
            "gateway": str(self._network[1]),
        }

    def keep(self, uid: str, address: str) -> None:
        """Reserve an address that an earlier kubelet gave the pod; ignore an invalid one."""
        try:
            number = int(IPv4Address(address)) - int(self._network.network_address)
        except AddressValueError:
            return
        if 1 < number < self._network.num_addresses - 1:
            self._hold(uid, number)

    def _read_statuses(self) -> None:
        """Keep the addresses that an earlier kubelet wrote to pods' statuses; later pods have theirs from us."""
        if self._has_read_statuses:
            return
        self._has_read_statuses = True
        for uid, pod in self._pods().items():
            if uid not in self._given:
                self.keep(uid, (pod.get("status") or {}).get("podIP") or "")

    def _hold(self, uid: str, number: int) -> None:
        if (before := self._given.get(uid)) is not None and before != number:
            self._taken.discard(before)
        self._given[uid] = number
        self._taken.add(number)

    def _let_go(self, uid: str) -> None:
        pods = self._pods()
        self._given = {other: number for other, number in self._given.items() if other in pods or other == uid}
        self._taken = set(self._given.values())

    def _free(self, uid: str) -> int:
        usable = self._network.num_addresses - 3  # not the network itself, the gateway, or the broadcast
        if len(self._taken) >= usable:
            self._let_go(uid)
        first = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8])
        for step in range(usable):
            number = 2 + (first + step) % usable
            if number not in self._taken:
                return number
        raise errors.Retryable(f"Cannot give the pod an address: all of {self._network} are in use (HPK_POD_CIDR)")
