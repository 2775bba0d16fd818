"""Runners of Slurm's commands (on a site, the gateway through its socket) and their results."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hpk import errors
from hpk.host import protocol
from hpk.slurm import parse

if TYPE_CHECKING:
    from pathlib import Path

QUERY_SECONDS = 30.0
_SIGNALLED = 128
"""A shell's exit code for a program killed by a signal is this plus the signal's number."""
_MOST_SIGNALS = 64
MARGIN_SECONDS = 5.0
"""How long after the gateway's own timeout the client stops waiting for it."""


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """A command's result; ``end`` is ``exited``, ``timeout``, ``overflow`` or ``failed``, see the protocol."""

    code: int
    stdout: bytes = b""
    stderr: bytes = b""
    end: str = "exited"

    @property
    def text(self) -> str:
        """Standard output; bytes that are not UTF-8 become surrogates."""
        return self.stdout.decode("utf-8", "surrogateescape")

    @property
    def error(self) -> str:
        """Standard error on one line, fit for an event."""
        return parse.messages(self.stderr.decode("utf-8", "replace"))

    @property
    def has_no_say(self) -> bool:
        """Whether the result does not show what was done: the command was killed, or failed without a message.

        Slurm's SIGTERM reaches every process of a job; a shell wrapper turns that into exit code 128 + signal.
        """
        return self.end != "exited" or self._signal > 0 or not self.error

    @property
    def _signal(self) -> int:
        """The signal that killed the command or a program in its shell wrapper; 0 for none."""
        if self.code < 0:
            return -self.code
        return self.code - _SIGNALLED if _SIGNALLED < self.code <= _SIGNALLED + _MOST_SIGNALS else 0

    @property
    def how(self) -> str:
        """A predicate for a sentence about the command's end."""
        ends = {"timeout": "gave no answer in time", "overflow": "printed too much"}
        if self.end != "exited":
            return ends.get(self.end, f"could not be followed to its end: {self.error}")
        what = f"was killed by signal {self._signal}" if self._signal else f"ended with exit code {self.code}"
        said = self.error or (f"printed {self.text.strip()[:200]!r}" if self.text.strip() else "said nothing")
        return f"{what} ({said})"


class Runner(Protocol):
    """A runner of Slurm commands: the gateway, or a test's scripted conversation."""

    async def run(
        self,
        command: str,
        *arguments: str,
        stdin: bytes = b"",
        directory: Path | None = None,
        timeout_seconds: float = QUERY_SECONDS,
    ) -> CommandResult:
        """Run a command.

        Raises:
            errors.SlurmUnavailable: It could not be run, or its answer was lost.
        """


class GatewayClient:
    """The client of the gateway's socket; each request has its own connection, so any number can run at once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def run(
        self,
        command: str,
        *arguments: str,
        stdin: bytes = b"",
        directory: Path | None = None,
        timeout_seconds: float = QUERY_SECONDS,
    ) -> CommandResult:
        """Run a command on the host; cancelling ends it there.

        Raises:
            errors.SlurmUnavailable: The gateway is unreachable, refuses, or its answer was lost.
        """
        request = {
            "command": command,
            "arguments": arguments,
            "stdin": len(stdin),
            "directory": None if directory is None else str(directory),
            "timeout_seconds": timeout_seconds,
        }
        message, sent = protocol.message(request, stdin), False
        try:
            async with asyncio.timeout(timeout_seconds + MARGIN_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(self._path), limit=1 << 20)
                try:
                    sent = True
                    writer.write(message)
                    return await _answer(reader, command)
                finally:
                    writer.close()
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            why = "it does not answer" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
            raise errors.SlurmUnavailable(
                f"Cannot run {command} through the gateway at {self._path}: {why}", may_have_succeeded=sent
            ) from error


async def _answer(reader: asyncio.StreamReader, command: str) -> CommandResult:
    (size,) = protocol.LENGTH.unpack(await reader.readexactly(protocol.LENGTH.size))
    head = json.loads(await reader.readexactly(size))
    stdout = await reader.readexactly(head["stdout"])
    stderr = await reader.readexactly(head["stderr"])
    if head["end"] == "refused":
        why = stderr.decode("utf-8", "replace")
        raise errors.SlurmUnavailable(f"Cannot run {command} through the gateway: {why}")
    return CommandResult(code=head["code"], stdout=stdout, stderr=stderr, end=head["end"])
