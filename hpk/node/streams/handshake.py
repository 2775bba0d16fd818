"""The handshake: what a request asks for, and the protocol, from its path, query and headers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpk import errors
from hpk.node.streams import websocket

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from multidict import CIMultiDictProxy, MultiMapping

SPDY = "SPDY/3.1"
TUNNEL = "SPDY/3.1+portforward.k8s.io"
V5 = "v5.channel.k8s.io"

SPDY_REMOTE = ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io")
SPDY_FORWARD = ("portforward.k8s.io",)
_LEGACY = ("", "channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io")
WEBSOCKET_REMOTE = (*_LEGACY, V5)
WEBSOCKET_FORWARD = (*_LEGACY, TUNNEL)

MOST_PORTS = 32
"""The limit for a WebSocket. A port takes two channels, numbered by one byte (in base64, a character from "0" on)."""
LARGEST_PORT = 65535


class HandshakeRefused(errors.Rejected):
    """A request that cannot be served.

    Attributes:
        code: The HTTP status.
        headers: Headers of the response.
    """

    def __init__(self, message: str, *, code: int = 400, headers: Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.code, self.headers = code, tuple(headers)


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """The streams that an exec or attach client requests."""

    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool


@dataclass(frozen=True, kw_only=True)
class Handshake:
    """The result of a handshake.

    Attributes:
        protocol: The subprotocol; empty for a WebSocket without one.
        is_websocket: Whether it is a WebSocket, and not SPDY.
        head: The response that switches protocols.
    """

    protocol: str
    is_websocket: bool
    head: bytes

    @property
    def is_base64(self) -> bool:
        """Whether channels carry base64 text."""
        return "base64." in self.protocol

    @property
    def has_json_status(self) -> bool:
        """Whether the error channel carries a ``v1.Status``."""
        return self.protocol.startswith(("v4.", "v5."))

    @property
    def has_resize(self) -> bool:
        """Whether a SPDY client with a terminal opens a resize stream."""
        return self.protocol.startswith(("v3.", "v4."))


def options(query: MultiMapping[str]) -> StreamOptions:
    """Return the streams of an exec or attach.

    Raises:
        HandshakeRefused: The query asks for none.
    """
    stdin, stdout, stderr, tty = (query.get(name) == "1" for name in ("input", "output", "error", "tty"))
    stderr = stderr and not tty  # a terminal has one output
    if not (stdin or stdout or stderr):
        raise HandshakeRefused("you must specify at least 1 of stdin, stdout, stderr")
    return StreamOptions(stdin=stdin, stdout=stdout, stderr=stderr, tty=tty)


def command(values: Iterable[str]) -> tuple[str, ...]:
    """Return the program and its arguments.

    Raises:
        HandshakeRefused: There is no program.
    """
    argv = tuple(values)
    if not argv or not argv[0]:
        raise HandshakeRefused("you must specify a command")
    return argv


def ports(query: MultiMapping[str]) -> tuple[int, ...]:
    """Return the ports that the query of a WebSocket port-forward names.

    Raises:
        HandshakeRefused: They are missing, too many, or invalid.
    """
    values = [value for text in query.getall("port", []) for value in text.split(",")]
    if not values:
        raise HandshakeRefused('query parameter "port" is required')
    if len(values) > MOST_PORTS:
        raise HandshakeRefused(f"Cannot forward {len(values)} ports over one connection: at most {MOST_PORTS}")
    found = tuple(port(value) for value in values)
    if None in found:
        raise HandshakeRefused(f'unable to parse "{",".join(values)}" as ports: each must be 1 to {LARGEST_PORT}')
    return tuple(number for number in found if number is not None)


def port(text: str) -> int | None:
    """Parse a port number; return None if it is invalid."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_PORT))):
        return None
    number = int(text)
    return number if 1 <= number <= LARGEST_PORT else None


def agree(
    headers: CIMultiDictProxy[str],
    *,
    method: str,
    spdy_protocols: tuple[str, ...],
    websocket_protocols: tuple[str, ...],
) -> Handshake:
    """Choose the first of the client's protocols that we support.

    Raises:
        HandshakeRefused: The request is no upgrade, or there is no common protocol.
    """
    if websocket.is_asked_for(headers):
        return _websocket(headers, method=method, known=websocket_protocols)
    wants = ",".join(headers.getall("Upgrade", [])).lower()
    if "upgrade" not in ",".join(headers.getall("Connection", [])).lower() or SPDY.lower() not in wants:
        raise HandshakeRefused("Upgrade request required")
    offered = _listed(headers.getall("X-Stream-Protocol-Version", []))
    if not offered:
        raise HandshakeRefused("unable to upgrade: header X-Stream-Protocol-Version does not name a protocol")
    chosen = next((name for name in offered if name in spdy_protocols), None)
    if chosen is None:
        accepted = [("X-Accepted-Stream-Protocol-Versions", name) for name in spdy_protocols]
        raise HandshakeRefused(_no_protocol(offered, spdy_protocols), code=403, headers=accepted)
    lines = {"Upgrade": SPDY, "X-Stream-Protocol-Version": chosen}
    return Handshake(protocol=chosen, is_websocket=False, head=_head(lines))


def _websocket(headers: CIMultiDictProxy[str], *, method: str, known: tuple[str, ...]) -> Handshake:
    if method != "GET":
        raise HandshakeRefused("unable to upgrade: a WebSocket begins with GET", code=405, headers=[("Allow", "GET")])
    try:
        key = websocket.accept(headers)
    except websocket.WebSocketError as error:
        raise HandshakeRefused(str(error), headers=[("Sec-WebSocket-Version", "13")]) from error
    offered = _listed(headers.getall("Sec-WebSocket-Protocol", [])) or [""]
    chosen = next((name for name in offered if name in known), None)
    if chosen is None:
        raise HandshakeRefused(_no_protocol(offered, known), code=403)
    lines = {"Upgrade": "websocket", "Sec-WebSocket-Accept": key}
    if chosen:
        lines["Sec-WebSocket-Protocol"] = chosen
    return Handshake(protocol=chosen, is_websocket=True, head=_head(lines))


def _no_protocol(offered: list[str], known: tuple[str, ...]) -> str:
    return f"unable to upgrade: unable to negotiate protocol: client supports {offered}, server accepts {list(known)}"


def _listed(values: Iterable[str]) -> list[str]:
    return [name for value in values for item in value.split(",") if (name := item.strip())]


def _head(lines: Mapping[str, str]) -> bytes:
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n{text}\r\n".encode()
