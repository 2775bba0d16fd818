"""The tunnel: leads to the API server from a host that cannot reach its port.

    python3 host.pyz tunnel --state DIR

It listens on this host's loopback, and starts the relay by srun, as a step of the control plane's job, which works
wherever jobs can be started; or by ssh. It prints one line of JSON when it listens: its record, or ``{"error":
"..."}``.

Anybody on this host can connect to the port, as to the API server's own port elsewhere; the API server asks for
credentials.
"""

import argparse
import asyncio
import contextlib
import errno
import hashlib
import json
import os
import signal
import socket
import sys
import time

from hpk.host import dial, protocol, relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_CHANNELS = 512
PAUSE_SECONDS = 5.0
"""Pause between attempts to connect, which are made only for a client's connection."""
IDLE_SECONDS = 1800.0
"""A tunnel in the background ends after this time without use."""
LOCK_SECONDS = 45.0


class Tunnel:
    """Listens on loopback, and connects to a relay when a client needs it."""

    def __init__(self, state: str, ways: "Sequence[str]", *, is_held: bool) -> None:
        self.stop = asyncio.Event()
        self.target = dial.Target(state)
        self._state = state
        self._ways = ways
        with open(sys.argv[0], "rb") as file:
            self._program = file.read()  # another version's launcher may remove it
        self._is_held = is_held
        self._line = None  # type: dial.RelayConnection | None
        self._carrying = None  # type: Any
        self._connecting = asyncio.Lock()
        self._failed_at = None  # type: float | None
        self.used_at = time.monotonic()

    async def connect(self) -> dial.RelayConnection:
        """Return the line to the relay, a new one if needed; raise dial.Problem if no way works."""
        async with self._connecting:
            if self._line is not None:
                return self._line
            if self._failed_at is not None and time.monotonic() - self._failed_at < PAUSE_SECONDS:
                raise dial.Problem("the tunnel has just failed to connect; try again in a few seconds")
            try:
                self._line = await self._dial()
            except dial.Problem:
                self._failed_at = time.monotonic()
                raise
            self._carrying = asyncio.ensure_future(self._carry(self._line))
            return self._line

    async def _dial(self) -> dial.RelayConnection:
        self.target = dial.Target(self._state)
        problems = []
        for way, argv in self.target.commands(dial.placed(self._program, self._state), self._ways):
            line = dial.RelayConnection(way)
            try:
                await line.start(argv)
            except dial.Problem as problem:
                problems.append(str(problem))
            else:
                return line
        raise dial.Problem(
            "; ".join(problems) or "the control plane runs in no job, and ssh is not allowed (HPK_CONNECT)"
        )

    async def _carry(self, line: dial.RelayConnection) -> None:
        await line.link.run()
        self._line = None
        await line.end()
        if not self._is_held:
            self.stop.set()
        elif not self.stop.is_set():
            say(f"the tunnel is lost{line.why()}; its next use reconnects it")

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a client's connection; close it if that is impossible."""
        self.used_at = time.monotonic()
        try:
            line = await self.connect()
        except dial.Problem as problem:
            if self._is_held:
                say(str(problem))
            writer.close()
            return
        if len(line.link.channels) < MOST_CHANNELS:
            line.link.open((reader, writer))
        else:
            writer.close()

    async def end_when_idle(self) -> None:
        """Stop when nobody has used the tunnel for long."""
        while True:
            await asyncio.sleep(min(IDLE_SECONDS / 10, 60.0))
            if self._line is not None and self._line.link.channels:
                self.used_at = time.monotonic()
            elif time.monotonic() - self.used_at > IDLE_SECONDS:
                self.stop.set()

    async def end(self) -> None:
        """Close the connection to the relay."""
        self.stop.set()
        if self._line is not None:
            await self._line.end()
            await asyncio.wait([self._carrying], timeout=dial.HANG_UP_SECONDS)


def say(text: str) -> None:
    """Tell the user who holds the tunnel."""
    sys.stderr.write("hpk: " + text + "\n")
    sys.stderr.flush()


async def serve(options: "argparse.Namespace", lock: "Any") -> None:
    """Listen until told to stop; raise dial.Problem if the first connection to a relay fails."""
    loop = asyncio.get_event_loop()
    tunnel = Tunnel(options.state, options.ways.split(","), is_held=options.hold)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, tunnel.stop.set)
    if options.hold:
        _until_closed(loop, tunnel.stop)
    line = await tunnel.connect()
    server = await _listen(tunnel, options.port)
    record = {
        "pid": os.getpid(), "started": started(os.getpid()), "held": options.hold, "way": line.way,
        "port": server.sockets[0].getsockname()[1], "job_id": tunnel.target.job_id, "host": tunnel.target.host,
    }  # fmt: skip
    path = protocol.tunnel_record(options.state)
    try:
        dial.put(path, json.dumps(record).encode(), "the tunnel's record")
    except dial.Problem:  # without a record nobody finds it
        await tunnel.end()
        raise
    answer(record)
    lock.close()
    idling = asyncio.ensure_future(tunnel.stop.wait() if options.hold else tunnel.end_when_idle())
    try:
        await tunnel.stop.wait()
    finally:
        idling.cancel()
        server.close()
        if (known(path) or {}).get("pid") == os.getpid():
            os.unlink(path)
        await tunnel.end()


def _until_closed(loop: "Any", stop: "asyncio.Event") -> None:
    """Stop when standard input ends."""
    stdin = sys.stdin.fileno()

    def look() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            stop.set()

    loop.add_reader(stdin, look)


async def _listen(tunnel: Tunnel, port: int) -> "Any":
    """Listen on the API server's own port if it is free, so that the port is the same on all login hosts."""
    try:
        return await asyncio.start_server(tunnel.accept, relay.LOOPBACK, port or tunnel.target.port)
    except OSError as error:
        if port:
            await tunnel.end()
            is_taken = error.errno == errno.EADDRINUSE
            why = "is taken on this host" if is_taken else f"cannot be used: {os.strerror(error.errno or 0)}"
            raise dial.Problem(f"port {port} {why}") from error
        return await asyncio.start_server(tunnel.accept, relay.LOOPBACK, 0)


# The record of a host's tunnel


def known(path: str) -> "dict[str, Any] | None":
    """Return the record of a tunnel that is alive, or None."""
    try:
        with open(path) as file:
            record = json.load(file)  # type: dict[str, Any]
        return record if started(record["pid"]) == record["started"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def started(pid: int) -> str:
    """Return the process's start time in ticks since boot, which identifies it together with its pid."""
    with open("/proc/%d/stat" % pid) as file:
        return file.read().rpartition(")")[2].split()[19]


def answer(record: "dict[str, Any]") -> None:
    """Print the one line, and redirect standard output to /dev/null."""
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)


def locked(path: str) -> "socket.socket":
    """Return a socket with a name that only one process on this host can have, so that two commands make one tunnel.

    A file lock does not do: shared homes often have none. After LOCK_SECONDS, longer than making a tunnel takes,
    continue without the name: another user may hold it out of malice.
    """
    name = "\0hpk-tunnel-%d-%s" % (os.getuid(), hashlib.sha256(path.encode()).hexdigest()[:16])
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            lock.bind(name)
        except OSError:
            time.sleep(0.05)
        else:
            break
    return lock


def settle(options: "argparse.Namespace") -> "dict[str, Any] | None":
    """Return the record of a tunnel that serves already, or None; end one that must make room."""
    path = protocol.tunnel_record(options.state)
    record = known(path)
    if record is None:
        return None
    if record["held"]:  # it follows the control plane by itself
        if options.hold:
            raise dial.Problem("'hpk connect' runs on this host already (process %(pid)d, port %(port)d)" % record)
        return record
    if not options.hold and record["job_id"] == dial.Target(options.state).job_id:
        return record
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(record["pid"], signal.SIGTERM)
    deadline = time.monotonic() + dial.HANG_UP_SECONDS
    while known(path) is not None and time.monotonic() < deadline:
        time.sleep(0.02)
    return None


def main(arguments: "list[str]") -> int:
    """Serve, and return 0; or return 1 if there is no tunnel."""
    parser = argparse.ArgumentParser(description="A tunnel to HPK's API server.")
    parser.add_argument("--state", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ways", default="srun,ssh")
    parser.add_argument("--hold", action="store_true", help="serve until standard input ends")
    options = parser.parse_args(arguments)
    os.umask(0o077)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        lock = locked(protocol.tunnel_record(options.state))
        record = settle(options)
        if record is None:
            loop.run_until_complete(serve(options, lock))
        else:
            answer(record)
    except dial.Problem as problem:
        answer({"error": str(problem)})
        return 1
    return 0
