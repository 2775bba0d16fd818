"""HTTP GET as in the kubelet's probes and hooks: one request, of whose answer only the status counts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib
import ipaddress
import socket
import urllib.parse
from typing import TYPE_CHECKING, Any

from hpk.agent.life import descriptors

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping, Sequence

MOST_REDIRECTS = 10
MOST_HEADER_BYTES = 10 << 20
"""Limit on all headers of a response, as in Go's client (net/http, Transport.MaxResponseHeaderBytes)."""
MOST_LINE_BYTES = 64 << 10
"""How much of a header line is kept; the rest is read and dropped."""
_RESOLVERS = concurrent.futures.ThreadPoolExecutor(4, thread_name_prefix="resolver")
_REDIRECTS = (301, 302, 303, 307, 308)
_INTERIM = frozenset(range(100, 200)) - {101}
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


class Failed(Exception):
    """There is no usable response; the text is worded as by Go's client."""


async def get(action: Mapping[str, Any], *, pod_ip: str, ports: Mapping[str, int], agent: str) -> tuple[int, bool]:
    """Return the status of an ``httpGet`` action, and whether it redirects to another host, which is not followed.

    Raises:
        Failed: There is no connection, or no valid HTTP response.
        LookupError: The container has no port of this name.
    """
    port = resolve_port(action["port"], ports)
    scheme = str(action.get("scheme") or "HTTP").lower()
    host = action.get("host") or pod_ip
    path = action.get("path") or "/"
    url = f"{scheme}://{_bracketed(host)}:{port}{path if path.startswith('/') else '/' + path}"
    headers = [(header["name"].lower(), header.get("value", "")) for header in action.get("httpHeaders") or []]
    named = {name for name, _ in headers}
    ours = (("user-agent", agent), ("accept", "*/*"), ("connection", "close"))
    headers += [header for header in ours if header[0] not in named]
    try:
        for _ in range(MOST_REDIRECTS):
            status, location = await _request(url, headers)
            if status not in _REDIRECTS or not location:
                return status, False
            target = redirected(url, location)
            if target is None:
                return status, True
            url = target
    except asyncio.IncompleteReadError as error:
        raise Failed(f'Get "{url}": {"unexpected EOF" if error.partial else "EOF"}') from error
    except (OSError, ValueError, IndexError, asyncio.LimitOverrunError) as error:
        # ValueError: an invalid URL (a Location, a port of six digits), host name (a label of 64 bytes) or response.
        raise Failed(f'Get "{url}": {error}') from error
    raise Failed(f'Get "{url}": stopped after 10 redirects')


def redirected(url: str, location: str) -> str | None:
    """Return the URL to which a redirect leads, or None if that is on another host; pure.

    Raises:
        ValueError: It is not a URL that can be followed.
    """
    try:
        target = urllib.parse.urljoin(url, location)
        parts = urllib.parse.urlsplit(target)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"failed to parse Location header {location!r}: {error}") from error
    if parts.hostname != urllib.parse.urlsplit(url).hostname:
        return None
    if parts.scheme not in ("http", "https"):
        raise ValueError(f'unsupported protocol scheme "{parts.scheme}"')
    return target


def resolve_port(port: Any, ports: Mapping[str, int]) -> int:
    """Return the number of a port, given by its number or its name in the container.

    Raises:
        LookupError: There is no such port.
    """
    if isinstance(port, int):
        return port
    if port in ports:
        return ports[port]
    if str(port).isdecimal():
        return int(port)
    raise LookupError(f"couldn't find port: {port}")


async def connect(
    host: str, port: int, *, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a TCP connection, with TLS if there is a context.

    Raises:
        Failed: There is no such host, or it refused.
    """
    try:
        return await _dial(await _resolve(host, port), port, context=context)
    except (socket.gaierror, ValueError, OverflowError) as error:  # ValueError: a label of 64 bytes, a NUL
        why = error.strerror if isinstance(error, socket.gaierror) else "malformed"
        raise Failed(f"dial tcp: lookup {host}: no such host ({why})") from error
    except OSError as error:
        if context is not None and isinstance(error, importlib.import_module("ssl").SSLError):
            raise Failed(str(error)) from error
        raise Failed(f"dial tcp {_bracketed(host)}:{port}: connect: {descriptors.words(error)}") from error


async def _dial(
    addresses: Sequence[str], port: int, *, context: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts: a server may listen on only one of localhost's two.

    Raises:
        OSError: None does; this is the first one's error.
    """
    failures = []
    for address in addresses:
        try:
            return await asyncio.open_connection(address, port, ssl=context, limit=MOST_LINE_BYTES)
        except OSError as error:
            failures.append(error)
    raise failures[0]


async def _resolve(host: str, port: int) -> list[str]:
    """Return the host's addresses, at least one.

    Lookups cannot be cancelled. They have their own threads, so that a name server that does not answer delays other
    lookups, but not the agent's disk work.

    Raises:
        socket.gaierror: There is no such host.
        ValueError: The name is not valid.
        OverflowError: The port is far out of range.
    """
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look_up)
    return [str(address[0]) for *_, address in found]


async def _request(url: str, headers: Sequence[tuple[str, str]]) -> tuple[int, str]:
    """Send one request; return and raise as :func:`_read_head`, and `Failed` if there is no connection."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        reader, writer = await connect(host, port, context=_unverified() if parts.scheme == "https" else None)
    except Failed as error:
        raise Failed(f'Get "{url}": {error}') from error
    try:
        named = next((value for name, value in headers if name == "host"), "")
        escaped = urllib.parse.quote(target, safe=_PRINTABLE, errors="surrogateescape")  # it must not end the line
        lines = [f"GET {escaped} HTTP/1.1", f"host: {named or parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers if name != "host"]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"))
        return await _read_head(reader)
    finally:
        writer.close()
        writer.transport.abort()  # else TLS waits for the server's close_notify, which some never send


def _unverified() -> ssl.SSLContext:
    """Return a TLS context without verification, as in the kubelet: probes test whether something answers."""
    import ssl  # noqa: PLC0415 - most pods do without (main.spared)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str]:
    """Return the status and the Location header; skip interim responses (100, 103), as Go's client does.

    Raises:
        ValueError: It is not HTTP, or is too long.
        asyncio.IncompleteReadError: It ends early.
    """
    left = MOST_HEADER_BYTES
    while True:
        first, length = await _read_line(reader, left)
        if not first.startswith(b"HTTP/"):
            raise ValueError(f'malformed HTTP response "{first[:80].decode("latin-1")}"')
        status = int(first.split()[1])
        location = ""
        line = first
        while line:
            left -= length
            line, length = await _read_line(reader, left)
            name, _, value = line.partition(b":")
            if name.strip().lower() == b"location":
                location = value.strip().decode("latin-1")
        if status not in _INTERIM:
            return status, location


async def _read_line(reader: asyncio.StreamReader, most: int) -> tuple[bytes, int]:
    """Return the stripped beginning of the next line, and the line's length.

    Raises:
        ValueError: It is longer than ``most``.
        asyncio.IncompleteReadError: It does not end.
    """
    kept, length = b"", 0
    while True:
        try:
            part = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            part = await reader.readexactly(error.consumed)
        kept, length = kept + part[: MOST_LINE_BYTES - len(kept)], length + len(part)
        if length > most:
            raise ValueError(f"net/http: server response headers exceeded {MOST_HEADER_BYTES} bytes; aborted")
        if part.endswith(b"\n"):
            return kept.strip(), length


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
