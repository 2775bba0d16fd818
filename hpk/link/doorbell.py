"""Datagrams that announce a new ``report.json``, and the kubelet's that acknowledge reading it.

A connection with TLS and gRPC costs an agent 150 ms of CPU, most of it imports: three times what a short pod's own
program may need. A pod that ends in its first second does without. The content is in the file; a datagram only says
when to read it. Each is authenticated with a key of the pod, which its plan holds (keyed BLAKE2b, RFC 7693); any other
is ignored. If one is lost or blocked, the agent dials after a moment, as it does for every pod that runs longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
import re
import socket
from typing import TYPE_CHECKING, Final, cast

from hpk import jobdir

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RING_AGAIN_SECONDS: Final = 0.1
_RING: Final = re.compile(rb"hpk-report 2 ([0-9A-Za-z-]{1,64}) ([0-9]{1,18}) ([0-9a-f]{32})")
_SEEN: Final = re.compile(rb"hpk-seen 2 ([0-9a-f]{32}) ([0-9]{1,18})")
_LONGEST: Final = 256
_SEAL_BYTES: Final = 16


def key_of(secret: bytes, uid: str) -> bytes:
    """Return the pod's key, 32 bytes, which the kubelet derives again whenever it needs it."""
    return hashlib.blake2b(uid.encode(), key=hashlib.sha256(secret).digest(), digest_size=32).digest()


def _sealed(text: bytes, key: bytes) -> bytes:
    return b"%s %s" % (text, hashlib.blake2b(text, key=key, digest_size=_SEAL_BYTES).hexdigest().encode())


def _opened(data: bytes, key: bytes) -> bytes | None:
    """Return the text, or None if it was sealed with another key."""
    text = data[: -2 * _SEAL_BYTES - 1]
    return text if hmac.compare_digest(_sealed(text, key), data) else None


class Doorbell(asyncio.DatagramProtocol):
    """The kubelet's end.

    `host` is the address that agents know; responses come from it. Datagrams of unknown pods are ignored. `read`
    processes a report and returns the newest sequence number, 0 if there is none.
    """

    def __init__(
        self,
        *,
        host: str,
        is_known: Callable[[str], bool],
        key: Callable[[str], bytes],
        read: Callable[[str], Awaitable[int]],
    ) -> None:
        self._host, self._is_known, self._key, self._read = host, is_known, key, read
        self._transport: asyncio.DatagramTransport | None = None
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, tuple[bytes, tuple[str, int]]] = {}

    async def listen(self, port: int) -> None:
        """Listen on this UDP port.

        Raises:
            OSError: The port is taken; agents work without the doorbell.
        """
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=(self._host, port))

    def close(self) -> None:
        """Close the socket and cancel all reads."""
        if self._transport:
            self._transport.close()
        for task in self._reading.values():
            task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; called by the event loop."""
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Read the report of a known pod, one read at a time for each pod; called by the event loop."""
        found = _RING.match(data[:_LONGEST])
        if found is None or not self._is_known(uid := found[1].decode()) or _opened(data, self._key(uid)) != found[0]:
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
                    self._transport.sendto(_sealed(b"hpk-seen 2 %s %d" % (nonce, sequence), self._key(uid)), address)
        finally:
            del self._reading[uid]


class Ringer:
    """The agent's end; an uplink of its reporter. Without a key (the plan of an older kubelet) it sends nothing."""

    def __init__(self, uid: str, *, key: str | None, endpoint_file: str) -> None:
        self._uid, self._key, self._endpoint_file = uid, bytes.fromhex(key or ""), endpoint_file
        self._address: tuple[str, int] | None = None
        self._nonce = os.urandom(16).hex().encode()
        self._socket: socket.socket | None = None
        self._sequence = self._seen = 0
        self._heard = asyncio.Event()

    def publish(self, sequence: int, data: bytes) -> None:
        """Tell the kubelet to read the file, which holds this report."""
        del data
        self._sequence = sequence
        self._ring()

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the kubelet has read this report, without end; ring again until then."""
        while self._seen < sequence:
            self._heard.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RING_AGAIN_SECONDS):
                    await self._heard.wait()
                    continue
            self._ring()

    def close(self) -> None:
        """Close the socket; idempotent."""
        if self._socket:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _ring(self) -> None:
        if not self._key:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # the kubelet is away; the file remains
            endpoint = jobdir.read_json(self._endpoint_file)
            address = (str(endpoint["host"]), int(endpoint["port"]))
            if self._socket is None or address != self._address:
                self._connect(address)
            if self._socket:
                text = b"hpk-report 2 %s %d %s" % (self._uid.encode(), self._sequence, self._nonce)
                self._socket.send(_sealed(text, self._key))

    def _connect(self, address: tuple[str, int]) -> None:
        """Open a socket that receives from the kubelet alone."""
        self.close()
        self._address = address
        self._socket = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect(address)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._hear)

    def _hear(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket:
                text = _opened(self._socket.recv(_LONGEST), self._key)
                if text and (found := _SEEN.fullmatch(text)) and found[1] == self._nonce:
                    self._seen = max(self._seen, int(found[2]))
                    self._heard.set()
