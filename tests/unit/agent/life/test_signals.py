"""What signals to the agent do to its pod."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.life import signals

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from hpk import records

    Listening = Callable[[records.Warning | None], "Pod"]


class Pod:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str | int] = []
        self.news = asyncio.Event()

    def end(self, reason: str) -> None:
        self.told.append(reason)
        self.news.set()

    def signal(self, number: int) -> None:
        self.told.append(number)
        self.news.set()

    async def until(self, told: list[str | int]) -> None:
        """Wait until it was told this."""
        async with asyncio.timeout(30):
            while self.told != told:
                self.news.clear()
                await self.news.wait()


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Leave no handler behind."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, jobdir.WARNING_SIGNAL)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
async def listening() -> AsyncIterator[Callable[[records.Warning | None], Pod]]:
    """Makes a pod whose signals are heard."""
    handlers = signals.Handlers(asyncio.get_running_loop())

    def made(plan: records.Warning | None) -> Pod:
        pod = Pod()
        signals.listen(handlers, pod, plan)
        return pod

    yield made
    handlers.close()


async def test_slurm_s_warning_ends_the_pod_in_time(listening: Listening) -> None:
    """The time limit is told apart from SIGTERM, which only says that the job ends."""
    pod = listening({"end_after": 0.0, "signal": None, "signal_after": 0.0})
    os.kill(os.getpid(), jobdir.WARNING_SIGNAL)
    await pod.until(["TimeLimit"])
    os.kill(os.getpid(), signal.SIGTERM)
    await pod.until(["TimeLimit", "Signalled"])


@pytest.mark.parametrize(("script_seconds", "due"), [(0.0, [30, 30, 45]), (25.0, [5, 29, 45]), (40.0, [5, 29, 45])])
async def test_a_warning_that_comes_too_early_waits(
    monkeypatch: pytest.MonkeyPatch, script_seconds: float, due: list[int]
) -> None:
    """Slurm counts in minutes, so the agent's clock says when half of a short limit is over.

    A slow prelude of the job's script counts: it must not be taken from the grace before the limit.
    """
    loop = asyncio.get_running_loop()
    handlers = signals.Handlers(loop)
    ends: list[float] = []
    monkeypatch.setattr(loop, "call_at", lambda at, *_: ends.append(at))
    began_at = loop.time()
    plan: records.Warning = {"end_after": 5.0, "signal": None, "signal_after": 0.0, "not_before": 30.0}
    signals.listen(handlers, Pod(), plan, script_seconds=script_seconds)
    warn: Any = signal.getsignal(jobdir.WARNING_SIGNAL)
    for elapsed in (0.0, 24.0, 40.0):
        monkeypatch.setattr(loop, "time", lambda elapsed=elapsed: began_at + elapsed)
        warn(jobdir.WARNING_SIGNAL, None)
        await asyncio.sleep(0)
    handlers.close()
    assert [round(at - began_at) for at in ends] == due


@pytest.mark.virtual_time
async def test_the_user_s_signal_comes_before_the_end(listening: Listening) -> None:
    """What --signal asks for goes to the containers, and the pod's end begins when it must."""
    pod = listening({"end_after": 5.0, "signal": signal.SIGUSR1, "signal_after": 0.0})
    os.kill(os.getpid(), jobdir.WARNING_SIGNAL)
    await pod.until([signal.SIGUSR1, "TimeLimit"])


async def test_the_warning_is_no_echo_of_the_same_signal_from_the_user(listening: Listening) -> None:
    """Whatever scancel has just sent, what --signal asks of Slurm arrives as well."""
    pod = listening({"end_after": None, "signal": signal.SIGUSR1, "signal_after": 0.0})
    os.kill(os.getpid(), signal.SIGUSR1)
    await pod.until([signal.SIGUSR1])
    os.kill(os.getpid(), jobdir.WARNING_SIGNAL)
    await pod.until([signal.SIGUSR1, signal.SIGUSR1])


@pytest.mark.virtual_time
async def test_a_signal_that_was_asked_for_is_handed_on_and_ends_nothing(listening: Listening) -> None:
    """Once, though scancel --full reaches the agent by several ways."""
    pod = listening({"end_after": None, "signal": signal.SIGUSR1, "signal_after": 0.0})
    for _ in range(3):
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGTERM)
    await pod.until([signal.SIGUSR1, "Signalled"])


async def test_a_callback_that_fails_keeps_no_other_signal_from_being_heard() -> None:
    """Both have come before the loop could look."""
    loop = asyncio.get_running_loop()
    handlers = signals.Handlers(loop)
    pod, failures = Pod(), []

    def fail() -> None:
        raise OSError("no processes are left")

    loop.set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    try:
        handlers.on(signal.SIGUSR1, fail)
        handlers.on(signal.SIGTERM, pod.end, "Signalled")
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        await pod.until(["Signalled"])
    finally:
        handlers.close()
    assert failures == ["no processes are left"]


async def test_no_signal_is_lost_behind_many_others() -> None:
    """A pipe holds 65536 bytes, one for each signal; those of one number are one to the pod."""
    handlers = signals.Handlers(asyncio.get_running_loop())
    pod = Pod()
    try:
        handlers.on(signal.SIGUSR1, pod.signal, signal.SIGUSR1)
        handlers.on(signal.SIGTERM, pod.end, "Signalled")
        for _ in range(66000):
            os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        await pod.until([signal.SIGUSR1, "Signalled"])
    finally:
        handlers.close()


def test_a_signal_after_the_loop_s_end_does_nothing() -> None:
    """The agent has still its last words to write."""
    loop = asyncio.new_event_loop()
    handlers = signals.Handlers(loop)
    pod = Pod()
    handlers.on(signal.SIGUSR1, pod.end, "Signalled")
    try:
        loop.close()
        os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        handlers.close()
    assert pod.told == []
