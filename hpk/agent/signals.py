"""Signals to the agent: the end of the job, the early warning of its time limit, and what is meant for the containers.

The job's script hands on what the pod is to have (hpk/pods/templates/job.sh.j2).  As the first process of its PID
namespace the agent hears nothing that it has no handler for, unless it is SIGKILL.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol

from hpk import jobdir

if TYPE_CHECKING:
    import asyncio

    from hpk import records

SAME_SECONDS = 1.0
"""``scancel --full`` reaches the job's script, Apptainer and the agent; it is one signal to the containers."""


class Target(Protocol):
    """The pod."""

    def end(self, reason: str) -> None:
        """End it, for a reason of `records.Ended`."""

    def signal(self, number: int) -> None:
        """Send a signal to the containers' first processes."""


def listen(loop: asyncio.AbstractEventLoop, pod: Target, plan: records.Warning | None) -> None:
    """Act on signals from now on, also on those that were blocked until now.

    Args:
        loop: Of the agent.
        pod: What is to be ended or signalled.
        plan: What the warning means; None in a plan of an older kubelet.
    """
    warning: records.Warning = plan or {"end_after": 0.0, "signal": None, "signal_after": 0.0}
    forward = _Forward(loop, pod)
    loop.add_signal_handler(signal.SIGTERM, pod.end, "Signalled")
    loop.add_signal_handler(signal.SIGINT, pod.end, "Signalled")
    if (number := warning["signal"]) is not None and number != signal.SIGTERM:
        loop.add_signal_handler(number, forward.send, number)  # SIGTERM is how Slurm ends a job
    loop.add_signal_handler(jobdir.WARNING_SIGNAL, _warn, loop, pod, warning)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, jobdir.WARNING_SIGNAL})


class _Forward:
    """Hands a signal on; what comes several times within a moment was sent once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, pod: Target) -> None:
        self._loop, self._pod = loop, pod
        self._sent_at: float | None = None

    def send(self, number: int) -> None:
        now = self._loop.time()
        if self._sent_at is None or now - self._sent_at >= SAME_SECONDS:
            self._sent_at = now
            self._pod.signal(number)


def _warn(loop: asyncio.AbstractEventLoop, pod: Target, warning: records.Warning) -> None:
    """Do what the pod wants when its job nears its time limit.  Slurm warns once: this is no echo."""
    if warning["signal"] is not None:
        loop.call_later(warning["signal_after"], pod.signal, warning["signal"])
    if warning["end_after"] is not None:
        loop.call_later(warning["end_after"], pod.end, "TimeLimit")
