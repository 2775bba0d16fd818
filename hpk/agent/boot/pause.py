"""The first process of a PID namespace that all containers of a pod share (``shareProcessNamespace``).

It does nothing but be there: it outlives every container, and what they leave behind becomes its children.  Containers
see it as process 1, and may look at its memory and its root: so it is a program started anew, which knows nothing of
the pod, and it has an empty file system.  Only pods that ask for it pay for it.
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
    """Start it; its process id as this process sees it.  Nothing but SIGKILL from outside ends it.

    Raises:
        OSError: The kernel does not allow it; what the program said is in the job's output.
    """
    ours, theirs = os.pipe()
    with open(ours, "rb") as told:
        # A process moves its children only into a new PID namespace: so it is a grandchild of ours, whom we adopt.
        if (child := os.fork()) == 0:
            _leave(theirs)
        os.close(theirs)
        said = told.read()  # to the end: it is ready, or there is none
    processes.wait(child)
    if _READY not in said:
        raise OSError("Cannot make the PID namespace that the pod's containers share")
    return int(said.replace(_READY, b""))


def command(told: int) -> list[str]:
    """The program, which says that it is ready on this descriptor."""
    code = f"import sys; sys.path.append({_LIBRARY!r}); from hpk.agent.boot import pause; pause.rest({told})"
    return [sys.executable, "-I", "-S", "-c", code]


def _leave(told: int) -> NoReturn:
    """In the child: fork the process, tell its id, end."""
    try:
        linux.unshare(linux.NEW_PROCESSES)
        if first := os.fork():
            os.write(told, b"%d" % first)
            os._exit(0)
        # Both outlive the program's start: no signal is heard, and the kernel collects orphans that end.
        _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        os.set_inheritable(told, True)
        argv = command(told)
        os.execve(argv[0], argv, {})  # noqa: S606 - no shell is the point
    finally:
        os._exit(1)


def rest(told: int) -> NoReturn:
    """The program: hold nothing, say so, and wait for the end."""
    _hide()
    os.write(told, _READY)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        _signal.pause()


def _hide() -> None:
    """Have an empty file system instead of the agent's."""
    linux.unshare(linux.NEW_MOUNTS)
    linux.mount("", "/", "", flags=linux.PRIVATE | linux.RECURSIVE)
    linux.mount("tmpfs", jobdir.SANDBOX_POD, "tmpfs", flags=linux.READ_ONLY, options="mode=0755")
    os.chdir(jobdir.SANDBOX_POD)
    linux.enter_root()
