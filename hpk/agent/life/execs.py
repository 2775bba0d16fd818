"""Commands inside a running container: in its namespaces, with its user, environment and working directory.

For exec probes and hooks (:func:`execute`) and for ``kubectl exec`` (`hpk.agent.serve.sessions`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Protocol

from hpk import aiotasks, jobdir
from hpk.agent.boot import oci, processes, quickjson, runs
from hpk.agent.life import descriptors, starting

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import consoles
    from hpk.agent.life import podcontext

MOST_OUTPUT = 10 * 1024
"""Bytes of output that are kept, as by the kubelet's prober."""
NOT_FOUND, NOT_EXECUTABLE = 127, 126
_REASONS = (
    # Part of crun's message → exit code and runc's words. If execve fails after crun's checks (another architecture, no
    # interpreter for a script), the exit code is 1, and crun's message is on standard error.
    ("not found in $PATH", NOT_FOUND, "executable file not found in $PATH"),
    ("executable file `", NOT_FOUND, "no such file or directory"),
    ("not a regular file", NOT_EXECUTABLE, "is a directory"),
    ("not executable", NOT_EXECUTABLE, "permission denied"),
    ("ermission denied", NOT_EXECUTABLE, "permission denied"),
)
_LINGER_SECONDS = 0.2
"""How long to wait for a probe's output after its end, if it left something in the background."""
_MOST_PAUSE_SECONDS = 1.0


class ExecTarget(Protocol):
    """A container in which commands can be run."""

    plan: records.ContainerPlan

    @property
    def run(self) -> runs.ContainerRun | None:
        """The run whose process is alive."""


class NotRunning(Exception):
    """The container has no process to run a command in, or cannot run it.

    Attributes:
        exit_code: A shell's exit code (126, 127), if the command is the cause.
    """

    def __init__(self, message: str, *, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Command:
    """A command that crun runs; crun ends with it, and with its exit code.

    It is not detached, because crun sometimes reaps a detached command that ends at once.
    """

    def __init__(
        self,
        context: podcontext.PodContext,
        run: runs.ContainerRun,
        argv: list[str],
        *,
        files: dict[int, int],
        console: consoles.Console | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        """Start it; ``files`` maps its descriptors to ours, which the caller closes.

        Raises:
            OSError: No process can be made.
        """
        self._argv = argv
        self._base = os.path.join(run.directory, f"exec-{time.monotonic_ns()}")
        process = process_of(run.process, argv, has_terminal=console is not None, size=size)
        data = quickjson.dumps(process).encode("utf-8", "surrogateescape")
        jobdir.write_bytes(self._base, data, is_durable=False)
        since = time.monotonic()
        pid_file = self._base + ".pid"
        try:
            starter = processes.spawn(
                runs.exec_argv(context.box, run, process_file=self._base, pid_file=pid_file, console=console),
                files=files,
            )
        except OSError:
            self.close()
            raise
        # The command inherits this from crun: if memory runs out, the kernel kills it before the agent.
        with contextlib.suppress(OSError), open(f"/proc/{starter}/oom_score_adj", "w", encoding="ascii") as file:
            file.write(str(context.box.oom_score))
        self.ended: asyncio.Future[Any] = context.reaper.wait(starter, since=since)
        """crun's raw status, when it has ended."""

    async def has_begun(self) -> bool:
        """Wait until the program runs, or cannot; until then its pipes carry crun's own output."""
        path = self._base + ".pid"
        while not os.path.exists(path):  # noqa: ASYNC240 - a tmpfs
            if self.ended.done():
                return False
            await asyncio.wait({self.ended}, timeout=0.002)
        return True

    async def wait(self) -> int:
        """Wait for its end and return its exit code: 128 + signal for a signalled process.

        Raises:
            NotRunning: It could not be run.
        """
        status = await asyncio.shield(self.ended)
        if said := starting.last_line(self._base + ".pid.log"):
            raise failure(said, self._argv)
        return processes.exit_code(status)

    async def kill(self) -> None:
        """Kill it, unless it has ended, and remove its files; crun, its parent, then ends too.

        crun reports its process id late; while crun is alive, the id cannot be another process's.
        """
        pause = 0.005
        while not self.ended.done():
            self._signal(9)
            await asyncio.wait({self.ended}, timeout=pause)
            pause = min(2 * pause, _MOST_PAUSE_SECONDS)
        self.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError, ValueError), open(self._base + ".pid", encoding="ascii") as file:
            os.kill(int(file.read()), number)

    def close(self) -> None:
        """Remove its files."""
        for suffix in ("", ".pid", ".pid.log"):
            with contextlib.suppress(OSError):
                os.unlink(self._base + suffix)


async def execute(
    context: podcontext.PodContext, target: ExecTarget, argv: list[str], *, timeout_seconds: float | None = None
) -> tuple[int, str]:
    """Run a probe's or hook's command in a container; return its exit code and output.

    Raises:
        NotRunning: The container has ended, or cannot run the command.
        TimeoutError: It took too long, and is killed.
    """
    run = target.run
    if run is None:
        raise NotRunning(f"container {target.plan['name']} is not running")
    ours, theirs = os.pipe()
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        filled = [context.box.fill(word) for word in argv]
        command = Command(context, run, filled, files={0: null, 1: theirs, 2: theirs})
    except OSError as error:
        os.close(ours)
        raise NotRunning(str(error)) from error
    finally:
        os.close(theirs)
        os.close(null)
    output = _Output(ours)
    try:
        async with asyncio.timeout(timeout_seconds):
            code = await command.wait()
            # The output ends with the command, unless it left something in the background.
            await asyncio.wait({output.task}, timeout=_LINGER_SECONDS)
            return code, output.data.decode("utf-8", "replace")
    finally:
        context.in_background(command.kill())
        await output.close()


class _Output:
    """The first bytes of a command's output."""

    def __init__(self, descriptor: int) -> None:
        self.data = b""
        self.task = asyncio.create_task(self._read(descriptor))
        self._descriptor = descriptor

    async def _read(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        while chunk := await descriptors.read(descriptor, 4096):
            self.data = (self.data + chunk)[:MOST_OUTPUT]

    async def close(self) -> None:
        await aiotasks.cancel(self.task)
        os.close(self._descriptor)


def process_of(
    process: dict[str, Any], argv: list[str], *, has_terminal: bool, size: tuple[int, int] | None = None
) -> dict[str, Any]:
    """Return the OCI process of a command beside the container's own; pure."""
    env = list(process["env"])
    if has_terminal and not any(one.startswith("TERM=") for one in env):
        env.append(f"TERM={oci.DEFAULT_TERMINAL}")
    sized = {"consoleSize": {"width": size[0], "height": size[1]}} if size else {}
    return process | {"args": argv, "env": env, "terminal": has_terminal} | sized


def failure(said: str, argv: list[str]) -> NotRunning:
    """Return crun's error in runc's words, which users and programs know; pure."""
    for part, code, why in _REASONS:
        if part in said:
            name = argv[0] if argv else ""
            return NotRunning(f'unable to start container process: exec: "{name}": {why}', exit_code=code)
    return NotRunning(said)
