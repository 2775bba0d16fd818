"""A datagram says that ``report.json`` has news, and one comes back when the kubelet has read it.

A connection with TLS and gRPC costs an agent 150 ms of CPU, most of it imports: three times what a short pod's own
program may need.  A pod that ends in its first second does without.  What counts is in the file; a datagram only says
when to look, so that it needs no secret: whoever sends one has a known pod's report read, no more.  One that is lost,
or cannot pass, costs the agent a moment: it then dials, as every longer pod does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from typing import TYPE_CHECKING, Final, cast

from hpk import jobdir

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RING_AGAIN_SECONDS: Final = 0.1
_RING: Final = re.compile(rb"hpk-report 1 ([0-9A-Za-z-]{1,64}) ([0-9]{1,18}) ([0-9a-f]{32})")
_SEEN: Final = re.compile(rb"hpk-seen 1 ([0-9a-f]{32}) ([0-9]{1,18})")
_LONGEST: Final = 256


class Doorbell(asyncio.DatagramProtocol):
    """The kubelet's end.

    Args:
        is_known: Whether there is such a pod; of others nothing is read.
        read: Reads a pod's report and acts on it; returns the newest sequence number, 0 if there is no report.
    """

    def __init__(self, *, is_known: Callable[[str], bool], read: Callable[[str], Awaitable[int]]) -> None:
        self._is_known, self._read = is_known, read
        self._transport: asyncio.DatagramTransport | None = None
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, tuple[bytes, tuple[str, int]]] = {}

    async def listen(self, host: str, port: int) -> None:
        """Listen.

        Raises:
            OSError: The port is taken; agents do without.
        """
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=(host, port))

    def close(self) -> None:
        """Listen no more."""
        if self._transport:
            self._transport.close()
        for task in self._reading.values():
            task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Called by the event loop: read the report of a pod that we know, one read of each at a time."""
        found = _RING.fullmatch(data[:_LONGEST])
        if found is None or not self._is_known(uid := found[1].decode()):
            return
        self._wanted[uid] = (found[3], addr)
        if uid not in self._reading:
            self._reading[uid] = asyncio.create_task(self._answer(uid), name=f"read report of {uid}")

    async def _answer(self, uid: str) -> None:
        try:
            while wanted := self._wanted.pop(uid, None):
                sequence = await self._read(uid)
                nonce, address = wanted
                if sequence and self._transport:
                    self._transport.sendto(b"hpk-seen 1 %s %d" % (nonce, sequence), address)
        finally:
            del self._reading[uid]


class Ringer:
    """The agent's end; an uplink of its reporter."""

    def __init__(self, uid: str, *, endpoint_file: str) -> None:
        self._uid, self._endpoint_file = uid, endpoint_file
        self._nonce = os.urandom(16).hex().encode()
        self._socket: socket.socket | None = None
        self._sequence = self._seen = 0
        self._heard = asyncio.Event()

    def publish(self, sequence: int, data: bytes) -> None:
        """Have the kubelet look at the file, where this report is."""
        del data
        self._sequence = sequence
        self._ring()

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the kubelet has read this report, without end; rings again until then."""
        while self._seen < sequence:
            self._heard.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RING_AGAIN_SECONDS):
                    await self._heard.wait()
                    continue
            self._ring()

    def close(self) -> None:
        """Listen no more; harmless if nothing was sent."""
        if self._socket:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _ring(self) -> None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the kubelet is away: the file is there
            endpoint = jobdir.read_json(self._endpoint_file)
            address = (str(endpoint["host"]), int(endpoint["port"]))
            if self._socket is None:
                self._socket = socket.socket(
                    socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM
                )
                self._socket.setblocking(False)
                asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)
            self._socket.sendto(b"hpk-report 1 %s %d %s" % (self._uid.encode(), self._sequence, self._nonce), address)

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket:
                found = _SEEN.fullmatch(self._socket.recv(_LONGEST))
                if found and found[1] == self._nonce:
                    self._seen = max(self._seen, int(found[2]))
                    self._heard.set()
