"""What hosts and the container share: the protocol of gateway and client, and the path of a tunnel's record.

A connection carries one request and one answer, so a client that leaves ends its command. Either message is
``uint32 length | JSON header | payload``, big-endian:

    request   {"version": 1, "command": "sbatch", "arguments": [...], "stdin": bytes that follow,
               "directory": "/..." or null, "timeout_seconds": 30}
    answer    {"version": 1, "code": 0, "stdout": bytes, "stderr": bytes, "end": "exited"}

``end`` is one of:

    exited: The command has ended; its code is negative for a signal.
    timeout, overflow: The command's process group was killed.
    refused: The request was not understood, and nothing was run; stderr says why.
    failed: The gateway itself met an error; whether the command did its work is unknown.

The gateway's own commands are:

    site: Prints a JSON object, see :func:`.survey.site`.
    tunnel OPTION...: Starts :mod:`.tunnel` in the background and prints that program's one line. With ``--hold`` the
        tunnel ends with the gateway.
    tunnels: Prints a JSON list of the started tunnels' exit codes, null while one runs; a killed one cannot report
        itself.
"""

import contextlib
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Tuple

    Result = Tuple[int, bytes, bytes, str]
    """Code, stdout, stderr and end, as in the answer."""

VERSION = 1
OWNER_FILE = "owner.json"
"""The file in the control plane's directory that names its holder (:mod:`hpk.controlplane.ownership`)."""
LENGTH = struct.Struct(">I")
MAX_HEADER = 16 << 20
MAX_STDIN = 64 << 20

FIND_PYTHON = """for python in python3 /usr/libexec/platform-python /usr/bin/python3; do
"$python" -IS -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null && exec "$python" -IS "$@"
done; echo "there is no Python 3.6 or newer on $(hostname)" >&2; exit 1"""
"""Shell text that executes a Python with the shell's own arguments."""


class InvalidRequest(Exception):
    """The request is not understood; the text says why."""


def message(header: "dict[str, Any]", *payload: bytes) -> bytes:
    """Return the bytes of a message; the version is added to the header."""
    text = json.dumps(dict(header, version=VERSION)).encode()
    return b"".join((LENGTH.pack(len(text)), text, *payload))


def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly this many bytes; fewer only if the peer ended."""
    parts = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_request(connection: socket.socket) -> "tuple[dict[str, Any], bytes] | None":
    """Return a request's header and payload, or None if the peer went away; raise InvalidRequest if it is invalid."""
    head = receive(connection, LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MAX_HEADER:
        raise InvalidRequest("the request's header is too long")
    try:
        request = json.loads(receive(connection, size).decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict) or request.get("version") != VERSION:
        raise InvalidRequest(f"the gateway speaks version {VERSION}, not the client's: start it from the same hpk.sif")
    if int(request.get("stdin") or 0) > MAX_STDIN:
        raise InvalidRequest("the standard input is too long")
    return request, receive(connection, int(request.get("stdin") or 0))


def answer(connection: socket.socket, result: "Result") -> None:
    """Send the answer; ignore a peer that has gone."""
    code, stdout, stderr, end = result
    header = {"code": code, "stdout": len(stdout), "stderr": len(stderr), "end": end}
    with contextlib.suppress(OSError):
        connection.sendall(message(header, stdout, stderr))


def tunnel_record(state: str) -> str:
    """Return the path of the record of this host's tunnel."""
    return os.path.join(state, "run", "tunnel-%s.json" % socket.gethostname())
