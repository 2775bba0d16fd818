"""HTTP GET as the kubelet's probes and hooks do it: one request, only the status matters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import urllib.parse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_REDIRECTS = 10


class Failed(Exception):
    """No answer was had; the text is as Go's client words it."""


async def get(action: Mapping[str, Any], *, pod_ip: str, ports: Mapping[str, int], agent: str) -> tuple[int, bool]:
    """The status of an ``httpGet`` action, and whether it was a redirect to another host, which nobody follows.

    Raises:
        Failed: No connection, or no HTTP.
        LookupError: The named port is not the container's.
    """
    port = resolve_port(action["port"], ports)
    scheme = str(action.get("scheme") or "HTTP").lower()
    host = action.get("host") or pod_ip
    path = action.get("path") or "/"
    url = f"{scheme}://{_bracketed(host)}:{port}{path if path.startswith('/') else '/' + path}"
    headers = {"user-agent": agent, "accept": "*/*", "connection": "close"}
    for header in action.get("httpHeaders") or []:
        name = header["name"].lower()
        headers[name] = header.get("value", "")
    for _ in range(MOST_REDIRECTS):
        status, location = await _request(url, headers)
        if status not in (301, 302, 303, 307, 308) or not location:
            return status, False
        target = urllib.parse.urljoin(url, location)
        if urllib.parse.urlsplit(target).hostname != urllib.parse.urlsplit(url).hostname:
            return status, True
        url = target
    raise Failed(f'Get "{url}": stopped after 10 redirects')


def resolve_port(port: Any, ports: Mapping[str, int]) -> int:
    """A number, or a name among the container's ports.

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


async def connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TCP connection.

    Raises:
        Failed: It was refused.
    """
    try:
        return await asyncio.open_connection(host, port)
    except OSError as error:
        # asyncio puts its own words into strerror
        text = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
        raise Failed(f"dial tcp {_bracketed(host)}:{port}: connect: {text}") from error


async def _request(url: str, headers: Mapping[str, str]) -> tuple[int, str]:
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        if parts.scheme == "https":
            reader, writer = await _connect_tls(host, port)
        else:
            reader, writer = await connect(host, port)
    except Failed as error:
        raise Failed(f'Get "{url}": {error}') from error
    try:
        lines = [f"GET {target} HTTP/1.1", f"host: {headers.get('host') or parts.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if name != "host"]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8", "surrogateescape"))
        return await _read_head(reader)
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        raise Failed(f'Get "{url}": {str(error) or "EOF"}') from error
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _connect_tls(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The kubelet does not verify what it probes: it asks whether it answers, not who it is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        return await asyncio.open_connection(host, port, ssl=context)
    except OSError as error:
        raise Failed(f"dial tcp {_bracketed(host)}:{port}: connect: {error}") from error


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str]:
    first = await reader.readuntil(b"\n")
    if not first.startswith(b"HTTP/"):
        raise ValueError("malformed HTTP response")
    status = int(first.split()[1])
    location = ""
    while (line := (await reader.readuntil(b"\n")).strip()) != b"":
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"location":
            location = value.strip().decode("latin-1")
    return status, location


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
