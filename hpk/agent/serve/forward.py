"""One forwarded connection: TCP to localhost in the pod's network namespace, where the agent is too."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.life import descriptors
from hpk.link import sessions

if TYPE_CHECKING:
    from hpk.link import agent_end

TO_PORT, FROM_PORT = 0, 1
_ADDRESSES = ((socket.AF_INET, "127.0.0.1", "tcp4"), (socket.AF_INET6, "::1", "tcp6"))
_HIGHEST_PORT = 65535


class NoListener(Exception):
    """Nobody listens; the text is as containerd words it."""


async def serve(port: int, client: agent_end.AgentSession) -> sessions.Ended:
    """Carry data both ways until each has ended, or the connection breaks."""
    if not 0 < port <= _HIGHEST_PORT:
        return sessions.Ended(error=f"port {port} is not between 1 and {_HIGHEST_PORT}", reason="InvalidPort")
    try:
        connection = await _connect(port)
    except NoListener as error:
        return sessions.Ended(error=str(error), reason="ConnectionRefused")
    with connection:
        ways = [
            asyncio.create_task(_to_port(connection, client)),
            asyncio.create_task(_from_port(connection, client)),
        ]
        try:
            await asyncio.gather(*ways)
        except OSError as error:
            text = f"connection to localhost:{port} broke: {descriptors.words(error)}"
            return sessions.Ended(error=text, reason="ConnectionReset")
        finally:
            await aiotasks.cancel(*ways)
    return sessions.Ended()


async def _connect(port: int) -> socket.socket:
    """A connection to whichever localhost answers, IPv4 first."""
    loop = asyncio.get_running_loop()
    failures = []
    for family, host, word in _ADDRESSES:
        connection = None
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(connection, (host, port))
        except BaseException as error:
            if connection:
                connection.close()
            if not isinstance(error, OSError):
                raise
            shown = f"[{host}]" if ":" in host else host
            failures.append(f"dial {word} {shown}:{port}: connect: {descriptors.words(error)}")
        else:
            return connection
    four, six = failures
    raise NoListener(f"failed to connect to localhost:{port} inside the pod, IPv4: {four} IPv6 {six}")


async def _to_port(connection: socket.socket, client: agent_end.AgentSession) -> None:
    while isinstance(event := await client.receive(), sessions.Data):
        await descriptors.write(connection.fileno(), event.data)
    if isinstance(event, sessions.Closed):
        try:
            connection.shutdown(socket.SHUT_WR)
        except OSError as error:
            if error.errno != errno.ENOTCONN:  # the other side has gone already
                raise


async def _from_port(connection: socket.socket, client: agent_end.AgentSession) -> None:
    while data := await descriptors.read(connection.fileno(), client.piece_bytes):
        await client.send(FROM_PORT, data)
    await client.close(FROM_PORT)
