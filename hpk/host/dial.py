"""Starts a relay in the control plane's job, by srun or ssh; an error has the command's own words."""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import shlex
import signal
import socket

from hpk.host import protocol, relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any  # noqa: F401 - of the types in comments

MOST_NOISE = 64 << 10
"""Bytes that may come before the greeting."""
START_SECONDS = {"srun": 30.0, "ssh": 20.0}
HANG_UP_SECONDS = 5.0


class Problem(Exception):
    """There is no tunnel; the text says why."""


class Target:
    """Where the control plane is, as recorded by itself."""

    def __init__(self, state: str) -> None:
        try:
            with open(os.path.join(state, "state", protocol.OWNER_FILE)) as file:
                owner = json.load(file)
            with open(os.path.join(state, "kubeconfig")) as file:
                found = re.search(r"server: https://[^\s]+:(\d+)", file.read())
        except (OSError, ValueError):
            owner, found = None, None
        if not isinstance(owner, dict) or not found:
            raise Problem("no control plane runs; 'hpk up' starts it")
        self.host = str(owner.get("host") or "")
        self.job_id = str(owner.get("job_id") or "")
        self.port = int(found.group(1))

    def commands(self, program: str, ways: "Sequence[str]") -> "list[tuple[str, list[str]]]":
        """Return (name, argv) of each way to start the relay there; `program` is the path of its file."""
        inner = [program, "relay", str(self.port)]
        step = ["--jobid=" + self.job_id, "--job-name=hpk-connect", "--overlap", "--nodes=1", "--ntasks=1"]
        step += ["--mpi=none", "--chdir=/", "sh", "-c", protocol.FIND_PYTHON, "sh", *inner]
        remote = " ".join(shlex.quote(word) for word in ["sh", "-c", protocol.FIND_PYTHON, "sh", *inner])
        made = {
            "srun": ["srun", *step],
            "ssh": ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "--", self.host, remote],
        }
        return [(way, made[way]) for way in ways if self.job_id or way != "srun"]


def placed(content: bytes, state: str) -> str:
    """Return the path by which all hosts see a copy of host.pyz with this content; write it if needed.

    Its name is a digest, so that tunnels of several versions have one each. A copy that a crash of the file server has
    truncated is replaced. Its mtime says when a tunnel last used it: the launcher removes copies that none uses.

    Raises:
        Problem: The state directory refuses it.
    """
    directory = os.path.join(state, "lib")
    path = os.path.join(directory, "host-%s.pyz" % hashlib.sha256(content).hexdigest()[:16])
    with contextlib.suppress(OSError), open(path, "rb") as file:
        if file.read() == content:
            os.utime(path)
            return path
    put(path, content, "the tunnel's programs")
    return path


def put(path: str, content: bytes, what: str) -> None:
    """Replace the file, whole or not at all; raise Problem if that fails."""
    try:
        write(path, content)
    except OSError as error:
        advice = "; free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise Problem(f"cannot put {what} into {os.path.dirname(path)}: {error.strerror}{advice}") from error


def write(path: str, content: bytes) -> None:
    """Replace the file, whole or not at all; raise OSError if that fails."""
    temporary = "%s.%s.%d" % (path, socket.gethostname(), os.getpid())  # another host may do the same
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


class RelayConnection:
    """A command that runs a relay, and the link over it."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.link = None  # type: Any
        self._process = None  # type: Any
        self._said = b""

    async def start(self, argv: "list[str]") -> None:
        """Return when the relay has greeted; raise Problem, in the command's own words, if it does not."""
        pipe = asyncio.subprocess.PIPE
        try:
            # In its own session, so that a Ctrl-C reaches only us, and we end it in order.
            self._process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            raise Problem(f"{self.way}: {error.strerror}") from error
        listening = asyncio.ensure_future(self._listen())
        try:
            greeting = await asyncio.wait_for(self._greeting(), START_SECONDS[self.way])
        except asyncio.TimeoutError:
            await self.end()
            raise Problem(f"{self.way} did not start in {START_SECONDS[self.way]:.0f} s{self.why()}") from None
        if greeting is None:
            await asyncio.wait([listening], timeout=1)
            await self.end()
            raise Problem(f"{self.way} failed{self.why()}")
        if greeting:
            await self.end()
            raise Problem(f"the API server does not answer on its own host: {greeting}")
        self.link = relay.Multiplexer(self._process.stdout, self._process.stdin)

    async def end(self) -> None:
        """End the relay and the command."""
        if self._process.returncode is not None:
            return
        self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                await asyncio.wait_for(self._process.wait(), HANG_UP_SECONDS)
            except asyncio.TimeoutError:
                self._process.send_signal(number)
            else:
                return

    async def _greeting(self) -> "str | None":
        """Return what follows the greeting in its line, or None if no greeting comes."""
        noise = 0
        while noise < MOST_NOISE:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than our lines
                return None
            start = line.find(relay.GREETING)
            if start >= 0:
                return str(line[start + len(relay.GREETING) :].decode("utf-8", "replace").strip())
            if not line:
                return None
            noise += len(line)
        return None

    async def _listen(self) -> None:
        """Keep the end of the command's standard error."""
        while True:
            part = await self._process.stderr.read(4096)
            if not part:
                return
            self._said = (self._said + part)[-4096:]

    def why(self) -> str:
        """Return the command's last words, after a colon; empty if there are none."""
        lines = [line.strip() for line in self._said.decode("utf-8", "replace").splitlines() if line.strip()]
        return ": " + "; ".join(lines[-2:]) if lines else ""
