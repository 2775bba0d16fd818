"""A child process with its own process group and a bounded log, ended by TERM then KILL, and never orphaned."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import shutil
import signal
from typing import TYPE_CHECKING

from hpk import aiotasks, errors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_CHUNK_BYTES = 65536
_LONGEST_LINE = 2000
_DRAIN_SECONDS = 1.0


class Log:
    """A log file (0600) of at most twice ``most_bytes``; a full one becomes ``<path>.1``.

    Nothing here raises: data that cannot be written, as on a full disk, are lost, and the next line tries again.
    """

    def __init__(self, path: Path, *, most_bytes: int = 8 << 20) -> None:
        self._path = path
        self._most_bytes = most_bytes
        self._descriptor: int | None = None
        self._size = 0
        self._open()

    def write(self, data: bytes) -> bool:
        """Append the bytes; return whether all of them are in the file."""
        if self._size > self._most_bytes:
            with contextlib.suppress(OSError):
                self._path.replace(f"{self._path}.1")
                self.close()
        if self._descriptor is None and not self._open():
            return False
        assert self._descriptor is not None
        try:
            count = os.write(self._descriptor, data)
        except OSError:
            return False
        self._size += count
        return count == len(data)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _open(self) -> bool:
        try:
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        except OSError:
            return False
        return True


class Process:
    """A running or ended child, made by :func:`start`; ``pid`` is also the id of its process group."""

    def __init__(self, name: str, child: asyncio.subprocess.Process, *, log: Log, kept_lines: int) -> None:
        self.name = name
        self.pid = child.pid
        self._child = child
        self._log = log
        self._lines: collections.deque[str] = collections.deque(maxlen=kept_lines)
        self._reader = asyncio.create_task(self._read(), name=f"output of {name}")

    @property
    def exit_code(self) -> int | None:
        """The exit code, minus the signal's number, or None while it runs."""
        return self._child.returncode

    @property
    def last_lines(self) -> list[str]:
        """The last lines of stdout and stderr."""
        return list(self._lines)

    async def wait(self) -> int:
        """Wait for the end and the last output; return the exit code, or minus the signal's number."""
        code = await self._child.wait()
        # A grandchild may hold the pipe open: its output is not worth waiting for.
        await asyncio.wait({self._reader}, timeout=_DRAIN_SECONDS)
        return code

    async def stop(self, *, grace_seconds: float) -> int:
        """End the child and its process group: SIGTERM, then SIGKILL after the grace or when cancelled; idempotent."""
        try:
            if self._child.returncode is None:
                self._signal(signal.SIGTERM)
                await aiotasks.in_time(self._child.wait(), grace_seconds)
        finally:
            self._signal(signal.SIGKILL)
            code = await self.wait()
            self._reader.cancel()
            await asyncio.wait({self._reader})
        return code

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def _read(self) -> None:
        assert self._child.stdout is not None
        rest = b""
        try:
            while data := await self._child.stdout.read(_CHUNK_BYTES):
                self._log.write(data)
                *lines, rest = (rest + data).split(b"\n")
                self._keep(lines)
                rest = rest[:_LONGEST_LINE]
        finally:
            if rest:
                self._keep([rest])
            self._log.close()

    def _keep(self, lines: list[bytes]) -> None:
        self._lines.extend(line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip() for line in lines)


async def start(name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, kept_lines: int = 20) -> Process:
    """Start a child with exactly this environment, umask 077, no input, and its output in the log.

    The kernel kills it if this process dies without having stopped it (PR_SET_PDEATHSIG).

    Raises:
        errors.Fatal: The program is missing or cannot be executed.
        errors.Retryable: The host cannot start another process now.
    """
    if shutil.which(argv[0], path=env.get("PATH", os.defpath)) is None:
        raise errors.Fatal(f"Cannot start {name}: {argv[0]} is missing or not executable")
    file = Log(log)
    try:
        child = await asyncio.create_subprocess_exec(
            *_dying_with_us(argv),
            env=dict(env),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            process_group=0,
            umask=0o077,
        )
    except OSError as error:
        file.close()
        raise errors.Retryable(f"Cannot start {name} ({argv[0]}): {error.strerror}") from error
    except asyncio.CancelledError:
        file.close()  # asyncio has killed the child before it did anything
        raise
    return Process(name, child, log=file, kept_lines=kept_lines)


def _dying_with_us(argv: Sequence[str]) -> list[str]:
    """Return the command behind setpriv, which sets the death signal and then becomes the command.

    A ``preexec_fn`` would fork this whole process, with gRPC's threads and locks in it.
    """
    if (setpriv := shutil.which("setpriv")) is None:
        return list(argv)
    return [setpriv, "--pdeathsig", "KILL", "--", *argv]
