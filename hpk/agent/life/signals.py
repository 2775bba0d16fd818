"""Signals to the agent: the end of the job, the early warning of its time limit, and signals for the containers.

The job's script passes on what the pod should get (hpk/pods/templates/job.sh.j2). As process 1 of its PID namespace the
agent receives only signals that it handles, and SIGKILL.
"""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING, Protocol

from hpk import jobdir

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from hpk import records

SAME_SECONDS = 1.0
"""``scancel --full`` reaches the job's script, Apptainer and the agent; the containers get one signal."""


class SignalTarget(Protocol):
    """The pod."""

    def end(self, reason: str) -> None:
        """End it, for a reason of `records.EndCause`."""

    def signal(self, number: int) -> None:
        """Send a signal to the containers' first processes."""


class Handlers:
    """Calls back in the event loop, in the main thread, when a signal comes.

    ``loop.add_signal_handler`` imports ``inspect`` to check callbacks, which costs a pod's start 3 ms.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._due: set[int] = set()
        self._arrivals, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)  # full, it wakes the loop just as well
        loop.add_reader(self._arrivals, self._woken)

    def on(self, number: int, callback: Callable[..., None], *arguments: object) -> None:
        """Call back for this signal from now on."""
        self._callbacks[number] = functools.partial(callback, *arguments)
        signal.signal(number, self._arrived)
        signal.siginterrupt(number, False)

    def close(self) -> None:
        """Stop calling back; the signals then do nothing."""
        self._callbacks.clear()
        self.loop.remove_reader(self._arrivals)
        signal.set_wakeup_fd(-1)
        os.close(self._arrivals)
        os.close(self._wakeup)

    def _woken(self) -> None:
        os.read(self._arrivals, 4096)

    def _arrived(self, number: int, _frame: object) -> None:
        """Schedule the callback; Python calls this between any two instructions, so it must not fail."""
        if number not in self._due and not self.loop.is_closed():
            self._due.add(number)
            self.loop.call_soon(self._call, number)

    def _call(self, number: int) -> None:
        """Call one back on its own, so that a failure does not affect others."""
        self._due.discard(number)
        if (callback := self._callbacks.get(number)) is not None:
            callback()


def listen(handlers: Handlers, pod: SignalTarget, plan: records.Warning | None, *, script_seconds: float = 0.0) -> None:
    """Act on signals from now on, including those that were blocked until now.

    The plan of an older kubelet has no warning (None). ``script_seconds`` is the age of the job's script.
    """
    warning: records.Warning = plan or {"end_after": 0.0, "signal": None, "signal_after": 0.0}
    forward = _Forward(handlers.loop, pod)
    handlers.on(signal.SIGTERM, pod.end, "Signalled")
    handlers.on(signal.SIGINT, pod.end, "Signalled")
    if (number := warning["signal"]) is not None and number != signal.SIGTERM:
        handlers.on(number, forward.send, number)  # SIGTERM is how Slurm ends a job
    earliest = handlers.loop.time() - script_seconds + warning.get("not_before", 0.0)
    handlers.on(jobdir.WARNING_SIGNAL, _warn, handlers.loop, pod, warning, earliest)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, jobdir.WARNING_SIGNAL})


class _Forward:
    """Passes a signal on; several of one kind within a moment were sent once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pod: SignalTarget) -> None:
        self._loop, self._pod = loop, pod
        self._sent_at: float | None = None

    def send(self, number: int) -> None:
        now = self._loop.time()
        if self._sent_at is None or now - self._sent_at >= SAME_SECONDS:
            self._sent_at = now
            self._pod.signal(number)


def _warn(loop: asyncio.AbstractEventLoop, pod: SignalTarget, warning: records.Warning, earliest: float) -> None:
    """React to the warning of the job's time limit. Slurm warns once, so this is no echo."""
    if warning["signal"] is not None:
        loop.call_later(warning["signal_after"], pod.signal, warning["signal"])
    if warning["end_after"] is not None:
        loop.call_at(max(loop.time() + warning["end_after"], earliest), pod.end, "TimeLimit")
