"""The first process of a PID namespace that all containers of a pod share (``shareProcessNamespace``).

It does nothing but be there: it outlives every container, and what they leave behind becomes its children.  Only pods
that ask for it pay for it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os

from hpk.agent import linux, processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def begin() -> int:
    """Start it; its process id as this process sees it.  Nothing but SIGKILL ends it.

    Raises:
        OSError: The kernel does not allow it.
    """
    ours, theirs = os.pipe()
    try:
        # A process moves its children only into a new PID namespace: so it is a grandchild of ours, whom we adopt.
        if (child := os.fork()) == 0:
            _leave(theirs)
        os.close(theirs)
        theirs = -1
        text = os.read(ours, 20)
        processes.wait(child)
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)
    if not text:
        raise OSError("Cannot make a PID namespace for the pod's containers")
    return int(text)


def _leave(told: int) -> NoReturn:
    """In the child: fork the process, tell its id, end."""
    try:
        linux.unshare(linux.NEW_PROCESSES)
        if first := os.fork():
            os.write(told, b"%d" % first)
        else:
            _rest()
    finally:
        os._exit(1)


def _rest() -> NoReturn:
    """In the process itself: hold nothing, hear nothing, and have the kernel collect the orphans that end."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, _signal.valid_signals())
    _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        _signal.pause()
