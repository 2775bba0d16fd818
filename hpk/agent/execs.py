"""Commands inside a running container: exec probes and hooks, in its namespaces, as its user, with its environment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.agent import processes, quickjson, runs

if TYPE_CHECKING:
    from hpk.agent import container, pod

MOST_OUTPUT = 10 * 1024
"""Bytes of output that are kept, as the kubelet's prober does."""


class NotRunning(Exception):
    """The container is not there to run a command in."""


async def execute(
    surroundings: pod.Surroundings,
    target: container.Container,
    argv: list[str],
    *,
    timeout_seconds: float | None = None,
) -> tuple[int, str]:
    """Run a command in a container; its exit code and what it wrote.

    Raises:
        NotRunning: The container has ended, or cannot run the command.
        TimeoutError: It took too long; it has been killed.
    """
    run = target.run
    if run is None:
        raise NotRunning(f"container {target.plan['name']} is not running")
    base = os.path.join(run.directory, f"exec-{time.monotonic_ns()}")
    text = quickjson.dumps(run.process | {"args": [surroundings.box.fill(word) for word in argv]})
    jobdir.write_bytes(base, text.encode("utf-8", "surrogateescape"))
    ours, theirs = os.pipe()
    null = os.open("/dev/null", os.O_RDONLY)
    since = time.monotonic()
    try:
        command = runs.exec_argv(surroundings.box, run, process_file=base, pid_file=base + ".pid")
        starter = processes.spawn(command, files={0: null, 1: theirs, 2: theirs})
    finally:
        os.close(theirs)
        os.close(null)
    try:
        async with asyncio.timeout(timeout_seconds):
            return await _attend(surroundings, base, ours, starter=starter, since=since)
    finally:
        os.close(ours)
        for suffix in ("", ".pid", ".pid.log"):
            with contextlib.suppress(OSError):
                os.unlink(base + suffix)


async def _attend(
    surroundings: pod.Surroundings, base: str, output: int, *, starter: int, since: float
) -> tuple[int, str]:
    """Wait for crun, which ends with the command and as the command did.

    Not detached: else crun would, now and then, reap a command that ends at once.
    """
    text = asyncio.create_task(_read(output))
    try:
        status = await asyncio.shield(surroundings.reaper.wait(starter, since=since))
        # The output ends with the command, unless it left something in the background.
        await asyncio.wait({text}, timeout=0.2)
    except asyncio.CancelledError:
        _kill(base)
        raise
    finally:
        text.cancel()
        data = await text
    if said := _last_line(base + ".pid.log"):
        raise NotRunning(said)
    return processes.exit_code(status), data.decode("utf-8", "replace")


def _kill(base: str) -> None:
    """Kill a command that takes too long; crun, which waits for it, ends too."""
    with contextlib.suppress(OSError, ValueError), open(base + ".pid", encoding="ascii") as file:
        os.kill(int(file.read()), 9)


async def _read(descriptor: int) -> bytes:
    """What is written there until all writers have gone or the task is cancelled."""
    os.set_blocking(descriptor, False)
    loop = asyncio.get_running_loop()
    data = b""
    ended: asyncio.Future[None] = loop.create_future()

    def take() -> None:
        nonlocal data
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(descriptor, 4096)
            data = (data + chunk)[:MOST_OUTPUT]
            if not chunk and not ended.done():
                ended.set_result(None)

    loop.add_reader(descriptor, take)
    with contextlib.suppress(asyncio.CancelledError):  # our caller cancels us to have what there is
        await ended
    loop.remove_reader(descriptor)
    return data


def _last_line(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
        if lines:
            return lines[-1]
    return ""
