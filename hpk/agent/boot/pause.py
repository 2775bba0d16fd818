"""The first process of a PID namespace that all containers of a pod share (``shareProcessNamespace``).

It only waits: it outlives every container, and adopts what they leave behind. Containers see it as process 1, and may
inspect its memory and its root: so it is a new program, which knows nothing of the pod, on an empty file system.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os
import sys

from hpk import jobdir
from hpk.agent.boot import linux, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_READY = b"."
_LIBRARY = __file__.removesuffix("/hpk/agent/boot/pause.py")


def begin() -> int:
    """Start it; return its process id as this process sees it. Only SIGKILL from outside ends it.

    Raises:
        OSError: The kernel does not allow it; the program's message is in the job's output.
    """
    ours, theirs = os.pipe()
    with open(ours, "rb") as told:
        # A process can move only its children into a PID namespace, so it is a grandchild, which we adopt.
        if (child := os.fork()) == 0:
            _leave(theirs)
        os.close(theirs)
        said = told.read()  # to the end: it is ready, or failed
    processes.wait(child)
    if _READY not in said:
        raise OSError("Cannot make the PID namespace that the pod's containers share")
    return int(said.replace(_READY, b""))


def command(told: int) -> list[str]:
    """Return the program's command; it writes to this descriptor when it is ready."""
    code = f"import sys; sys.path.append({_LIBRARY!r}); from hpk.agent.boot import pause; pause.rest({told})"
    return [sys.executable, "-I", "-S", "-c", code]


def _leave(told: int) -> NoReturn:
    """Fork the process in the child, tell its id, and exit."""
    try:
        linux.unshare(linux.NEW_PROCESSES)
        if first := os.fork():
            os.write(told, b"%d" % first)
            os._exit(0)
        # Both survive execve(2): signals are blocked, and the kernel collects orphans that end.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        os.set_inheritable(told, True)
        argv = command(told)
        os.execve(argv[0], argv, {})  # noqa: S606 - no shell is the point
    finally:
        os._exit(1)


def rest(told: int) -> NoReturn:
    """Run the program: close everything, say that it is ready, and wait to be killed."""
    _hide()
    os.write(told, _READY)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        _signal.pause()


def _hide() -> None:
    """Replace the agent's file system by an empty one."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount("", "/", "", flags=linux.PRIVATE | linux.RECURSIVE)
    linux.mount("tmpfs", jobdir.SANDBOX_POD, "tmpfs", flags=linux.READ_ONLY, options="mode=0755")
    os.chdir(jobdir.SANDBOX_POD)
    linux.enter_root()
