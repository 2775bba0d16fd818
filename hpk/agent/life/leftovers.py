"""Kills what a container leaves in a PID namespace that is not its own; there the kernel does not."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpk.agent.boot import runs

_ROUNDS = 20
"""How often to look again: processes that are being killed may have forked."""


def kill(run: runs.ContainerRun) -> None:
    """Kill all processes of a run whose first one has ended; do nothing if it had its own PID namespace."""
    for _ in range(_ROUNDS if run.mounts else 0):
        left = [process for process in os.listdir("/proc") if process.isdecimal() and _mounts(process) == run.mounts]
        if not left:
            return
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), 9)


def _mounts(process: str) -> str:
    """Return the mount namespace of a process, which tells its container."""
    try:
        return os.readlink(f"/proc/{process}/ns/mnt")
    except OSError:  # it has ended, or is not ours
        return ""
