"""Which address a pod gets where HPK gives it: one of the pods' network that no other pod has."""

from __future__ import annotations

import hashlib
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hpk import records


class Addresses:
    """Addresses by pod UID.  What a pod was given is found again in its status after a restart."""

    def __init__(self, cidr: str, *, pods: Callable[[], Mapping[str, dict[str, Any]]]) -> None:
        """Know the network.

        Args:
            cidr: The pods' network; its first address is the gateway.
            pods: All pods of the node as they are now, by UID.
        """
        self._network = IPv4Network(cidr)
        self._pods = pods
        self._given: dict[str, int] = {}

    def give(self, uid: str) -> records.Address:
        """The pod's address, the same each time; the first choice depends on the UID alone.

        Raises:
            errors.Retryable: The network is full.
        """
        pods = self._pods()
        self._given = {other: number for other, number in self._given.items() if other in pods or other == uid}
        if uid not in self._given:
            shown = {other: (pod.get("status") or {}).get("podIP", "") for other, pod in pods.items() if other != uid}
            self._given[uid] = self._free(
                uid, taken={str(self._network[n]) for n in self._given.values()} | {*shown.values()}
            )
        return {
            "ip": str(self._network[self._given[uid]]),
            "prefix_length": self._network.prefixlen,
            "gateway": str(self._network[1]),
        }

    def _free(self, uid: str, *, taken: set[str]) -> int:
        usable = self._network.num_addresses - 3  # not the network itself, the gateway, or the broadcast
        first = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:8])
        for step in range(usable):
            number = 2 + (first + step) % usable
            if str(self._network[number]) not in taken:
                return number
        raise errors.Retryable(f"Cannot give the pod an address: all of {self._network} are taken (HPK_POD_CIDR)")
