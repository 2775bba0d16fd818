"""What a container leaves in a PID namespace that is not its own: the kernel does not end it with the container."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpk.agent.boot import runs

_ROUNDS = 20
"""Of looking for more: what is being killed may have had children meanwhile."""


def kill(run: runs.ContainerRun) -> None:
    """Kill all processes of a run whose first one has ended; nothing to do where it had a PID namespace of its own."""
    for _ in range(_ROUNDS if run.mounts else 0):
        left = [process for process in os.listdir("/proc") if process.isdecimal() and _mounts(process) == run.mounts]
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), 9)


def _mounts(process: str) -> str:
    """By its mount namespace a process is known to be a container's."""
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:  # it has ended, or is none of ours
        return ""
