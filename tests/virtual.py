"""An event loop whose time passes only when nothing else can happen, so that a test of pauses takes no time.

looptime is the library for this. Its clock goes on while threads run, as ours must not: the kubelet's rooms read and
write files in threads, and a slow disk would decide what a test sees.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, TypeVar

from hpk.aio import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import pytest

T = TypeVar("T")

EPOCH = 1_800_000_000.0
"""Unix seconds at which each loop begins."""
QUIET_ROUNDS = 3
"""How often the loop must have had nothing to do before time passes."""


class Loop(asyncio.SelectorEventLoop):
    """Jumps to its next timer when nothing is ready, no thread works for it, and no descriptor has news."""

    def __init__(self) -> None:
        self._elapsed = 0.0
        self._threads = 0
        self._quiet = 0
        super().__init__(_Selector(self._pass))
        self._clock_resolution = 1e-6  # asyncio adds it to the time; a nanosecond is lost in a number of months

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._elapsed

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run a function in a thread; time stands still until it has returned."""
        self._threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def _pass(self, seconds: float) -> bool:
        """Let time pass until the next timer; return whether it may."""
        if self._threads:
            return False
        self._quiet += 1
        if self._quiet > QUIET_ROUNDS:
            self._elapsed += seconds
            self._quiet = 0
        return True


class _Selector(selectors.DefaultSelector):
    """Asks the loop to let time pass instead of waiting."""

    def __init__(self, let_pass: Callable[[float], bool]) -> None:
        super().__init__()
        self._let_pass = let_pass

    def select(self, timeout: float | None = None) -> Any:
        """Return what is ready; wait in real time only for threads and for what has no timer."""
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is not None and timeout > 0 and self._let_pass(timeout):
            return []
        return super().select(None)


class Time:
    """In place of the module in code that sleeps in its thread: its time passes only when that code sleeps."""

    def __init__(self) -> None:
        self._elapsed = 0.0

    def monotonic(self) -> float:
        """Return the seconds slept so far."""
        return self._elapsed

    def time(self) -> float:
        """Return Unix seconds."""
        return EPOCH + self._elapsed

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._elapsed += seconds


def pass_at_once(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the running loop find in its next turn that so many seconds more have passed, as on a machine that stood."""
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + seconds)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a loop of its own, whose time is virtual; return and raise what it does."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


def running() -> clock.Clock:
    """Return the clock of the loop that runs; the machine's where it is no virtual one."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop):
        return clock.SYSTEM
    return clock.Clock(monotonic=loop.time, time=lambda: EPOCH + loop.time())
