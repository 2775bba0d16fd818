"""The gateway: runs Slurm's commands on the host for a program inside the container.

    python3 host.pyz gateway /path/of/socket [--keep 'HPK_*' ...]

It listens on a Unix socket that only its own user may use, and serves until its standard input ends. Its parent holds
the other end, so it needs no signal; and SIGTERM from Slurm, which every process of a job receives at once, must not
cut off a program that still has jobs to handle. :mod:`.protocol` describes its requests.
"""

import contextlib
import getopt
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading

from hpk.host import commands, protocol, survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_TIMEOUT_SECONDS = 600
MAX_COMMANDS = 16
"""Commands that run at once; further requests wait."""

# Also needed by ssh, for a tunnel to a compute node.
SSH_ENVIRONMENT = ("SSH_AUTH_SOCK", "KRB5CCNAME")


class GatewayServer:
    """The server, with a thread for each connection."""

    def __init__(self, path: str, keep: "Iterable[str]" = ()) -> None:
        self.path = path
        self.program = os.path.abspath(sys.argv[0])
        self.environment = commands.environment(keep)
        self.slots = threading.BoundedSemaphore(MAX_COMMANDS)
        self.tunnels = []  # type: list[subprocess.Popen[bytes]]

    def listen(self) -> None:
        """Make the directory and the socket, for this user only.

        The socket gets its name only when it accepts, so that whoever waits for the file can connect at once.
        """
        directory = os.path.dirname(self.path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.stat(directory)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise SystemExit(f"hpk gateway: {directory} must belong to this user alone (mode 0700)")
        temporary = self.path + ".new"
        for leftover in (temporary, self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(temporary)
        os.chmod(temporary, 0o600)
        self.listener.listen(128)
        os.rename(temporary, self.path)

    def serve(self, until: int) -> None:
        """Answer until the stream ``until`` (a descriptor) ends."""
        poller = select.poll()
        poller.register(self.listener.fileno(), select.POLLIN)
        poller.register(until, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == until:
                    if not os.read(until, 4096):
                        return
                    continue
                connection, _ = self.listener.accept()
                threading.Thread(target=self.handle, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Remove the socket."""
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def handle(self, connection: socket.socket) -> None:
        """Answer one request; no fault of it ends the gateway."""
        with connection:
            try:
                size = struct.calcsize("3i")
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                if struct.unpack("3i", peer)[1] != os.getuid():
                    return
                got = protocol.read_request(connection)
                if got is not None:
                    protocol.answer(connection, self.obey(connection, *got))
            except protocol.InvalidRequest as error:
                protocol.answer(connection, (1, b"", str(error).encode(), "refused"))
            except Exception as error:  # noqa: BLE001 - the peer is told, and others must be served
                protocol.answer(connection, (1, b"", f"{type(error).__name__}: {error}".encode(), "failed"))

    def obey(self, connection: socket.socket, request: "dict[str, Any]", stdin: bytes) -> "protocol.Result":
        """Do what the request asks for, and return the parts of the answer."""
        command = str(request.get("command"))
        if command == "site":
            return 0, json.dumps(survey.site(request.get("arguments") or [], self.environment)).encode(), b"", "exited"
        # JSON has no bytes: text that is not UTF-8 comes as surrogates, and is restored for the command.
        arguments = [str(word) for word in request.get("arguments") or []]
        if command == "tunnel":
            return 0, self.tunnel(*arguments), b"", "exited"
        if command == "tunnels":
            return 0, json.dumps([child.poll() for child in self.tunnels]).encode(), b"", "exited"
        commands.check(command, arguments)
        words = [word.encode("utf-8", "surrogateescape") for word in arguments]
        timeout = min(float(request.get("timeout_seconds") or 30), MAX_TIMEOUT_SECONDS)
        program = commands.find(command, self.environment)
        if program is None:
            raise protocol.InvalidRequest(f"there is no '{command}' on PATH on {socket.gethostname()}")
        with self.slots:
            return commands.run(
                [command.encode(), *words],
                program=program, stdin=stdin, directory=request.get("directory"),
                timeout_seconds=timeout, env=self.environment, connection=connection,
            )  # fmt: skip

    def tunnel(self, *options: str) -> bytes:
        """Start a tunnel that outlives the request, and return its first line."""
        is_held = "--hold" in options
        child = subprocess.Popen(
            [sys.executable, "-IS", self.program, "tunnel", *options],
            stdin=subprocess.PIPE if is_held else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_held else subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=dict(self.environment, **{name: os.environ[name] for name in SSH_ENVIRONMENT if name in os.environ}),
        )
        self.tunnels.append(child)  # keeps the other end of its standard input open
        assert child.stdout is not None
        with child.stdout:
            return child.stdout.readline()


def main(arguments: "list[str]") -> int:
    """Serve until standard input ends."""
    options, (path,) = getopt.gnu_getopt(arguments, "", ["keep="])  # argparse would take 5 ms
    os.umask(0o077)  # Slurm creates jobs' output files with the submitter's umask
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which every command would inherit
    gateway = GatewayServer(os.path.abspath(path), [pattern for _, pattern in options])
    gateway.listen()
    try:
        gateway.serve(until=sys.stdin.fileno())
    finally:
        gateway.close()
    return 0
