"""TCP ports that are chosen free, held while this process lives, and the same again after a restart.

A held port is bound but not listened on, with SO_REUSEADDR. Linux lets another socket with SO_REUSEADDR bind and
listen beside it (Go's, asyncio's and gRPC's listeners all set it), yet never hands the port out as a free one. So there
is no race between choosing a port and the child that listens on it, even if the child is restarted. Two holders would
not notice each other, so each also binds an abstract Unix socket named after the port, which belongs to the same
network namespace and disappears with its owner.
"""

from __future__ import annotations

import errno
import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Below Linux's ephemeral ports (from 32768), which outgoing connections use, and Kubernetes' node ports (from 30000): a
# port that is free on this host is most likely free on the next one.
LOWEST = 20000
HIGHEST = 29999
_TRIES = 64


@dataclass(frozen=True)
class ReservedPort:
    """A port that nobody else gets. Our own server may listen on ``bound``, or bind beside it."""

    host: str
    port: int
    bound: socket.socket
    _mark: socket.socket

    def close(self) -> None:
        """Release the port; idempotent."""
        self.bound.close()
        self._mark.close()


def hold(host: str, *, preferred: Iterable[int] = ()) -> ReservedPort:
    """Hold the first preferred port that is free, else any free port.

    Raises:
        errors.Fatal: The host is not an address of this machine, or no port is free.
    """
    for port in _candidates(preferred):
        try:
            return _hold(host, port)
        except OSError as error:
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                raise errors.Fatal(
                    f"Cannot listen on {host}: {error.strerror}; set HPK_ADDRESS to an IPv4 address of this host"
                ) from error
    raise errors.Fatal(f"Cannot find a free TCP port on {host} (tried {LOWEST} to {HIGHEST})")


class Book:
    """Held ports by name, recorded in a JSON file and preferred by the next run, so that kubeconfigs stay valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: dict[str, ReservedPort] = {}

    def hold(self, name: str, *, host: str, preferred: Iterable[int] = ()) -> ReservedPort:
        """Hold a port for the name: the recorded one, else a preferred one, else any free one; idempotent.

        Raises:
            errors.Fatal: As :func:`hold`.
        """
        if name not in self._held:
            recorded = self._read()
            first = [recorded[name]] if name in recorded else []
            self._held[name] = held = hold(host, preferred=[*first, *preferred])
            if recorded.get(name) != held.port:
                jobdir.write_json(str(self._path), recorded | {name: held.port})
        return self._held[name]

    def close(self) -> None:
        """Release all ports; the record stays."""
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _read(self) -> dict[str, int]:
        recorded = jobdir.peek_json(str(self._path)) or {}  # only a preference: without it any port will do
        return {name: port for name, port in recorded.items() if isinstance(port, int) and 0 < port < 65536}  # noqa: PLR2004


def _candidates(preferred: Iterable[int]) -> Iterator[int]:
    yield from preferred
    for _ in range(_TRIES):
        yield random.randint(LOWEST, HIGHEST)  # noqa: S311 - nothing secret about a port


def _hold(host: str, port: int) -> ReservedPort:
    mark = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        mark.bind(f"\0hpk-port-{port}")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError:
        mark.close()
        made.close()
        raise
    return ReservedPort(host, port, made, mark)
