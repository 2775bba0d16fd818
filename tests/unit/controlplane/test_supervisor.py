"""The supervisor with real /bin/sh children."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from hpk import errors
from hpk.aio import backoff
from hpk.controlplane import component, supervisor
from tests import background, virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

QUICK = backoff.BackoffPolicy(first_seconds=0.01, cap_seconds=0.02)


class Exists:
    """Ready when the child has made this file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def __call__(self) -> str | None:
        """None if the file is there."""
        return None if self.path.exists() else "no file"


class Shells:
    """Makes components that write what they do into one journal."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.journal = root / "journal"
        self.journal.touch()

    def component(self, name: str, *, script: str = "", **rest: Any) -> component.Component:
        """A child that notes start and stop, and is ready once it has made its file."""
        lines = f"""
            note() {{ echo "$1 {name}" >> {self.journal}; }}
            trap 'note stop; exit 0' TERM
            note start
            {script}
            touch {self.root / name}
            while :; do sleep 0.01; done
        """
        return component.Component(
            name=name,
            argv=("/bin/sh", "-c", lines),
            env={"PATH": "/usr/bin:/bin"},
            log=self.root / f"{name}.log",
            **{"probe": Exists(self.root / name)} | rest,
        )

    def lines(self) -> list[str]:
        """What happened so far."""
        return self.journal.read_text().splitlines()


@pytest.fixture(name="shells")
def _shells(tmp_path: Path) -> Shells:
    return Shells(tmp_path)


@contextlib.asynccontextmanager
async def running(*components: component.Component) -> AsyncIterator[supervisor.Supervisor]:
    """A supervisor that runs while the block lasts."""
    made = supervisor.Supervisor(components, policy=QUICK)
    task = asyncio.create_task(made.run())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_start_in_order_of_needs_and_stop_in_reverse(shells: Shells) -> None:
    """Each child starts when those that it needs are ready, and they stop only after it."""
    parts = (
        shells.component("c", needs=("b", "a")),
        shells.component("b", needs=("a",)),
        shells.component("a", script=f"until test -e {shells.root}/go; do sleep 0.01; done"),
    )
    async with running(*parts) as made:
        await waiting.until(shells.lines)
        (shells.root / "go").touch()
        await made.ready("c").wait()
        assert shells.lines() == ["start a", "start b", "start c"]
        pids = [made.pid(name) for name in "abc"]
    assert shells.lines()[3:] == ["stop c", "stop b", "stop a"]
    assert not any(pid is not None and psutil.pid_exists(pid) for pid in pids)


async def test_dependents_wait_for_readiness_not_for_the_process(shells: Shells) -> None:
    """A child that runs but is not ready holds back those that need it, and a stop meanwhile is orderly."""
    never = shells.component("a", probe=Exists(shells.root / "never"))
    async with running(never, shells.component("b", needs=("a",))) as made:
        await waiting.until(lambda: shells.lines() and made.pid("a"))
    assert shells.lines() == ["start a", "stop a"]


async def test_cancelled_before_anything_started(shells: Shells) -> None:
    """A stop in the very first moment ends at once and leaves nothing."""
    made = supervisor.Supervisor([shells.component("a"), shells.component("b", needs=("a",))])
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(30):
            await task
    assert made.pid("a") is None


async def test_a_child_that_dies_is_restarted_alone(shells: Shells) -> None:
    """A crash restarts that child, with its readiness taken back meanwhile; its dependents keep running."""
    root = shells.root
    dies = f"touch {root}/once {root}/a; until test -e {root}/die; do sleep 0.01; done; exit 1"
    once = f"test -e {root}/once || {{ {dies}; }}"
    async with running(shells.component("a", script=once), shells.component("b", needs=("a",))) as made:
        await made.ready("b").wait()
        second = made.pid("b")
        (root / "die").touch()
        await waiting.until(lambda: not made.ready("a").is_set())
        await made.ready("a").wait()
        await waiting.until(lambda: len(shells.lines()) >= 3)
        assert made.pid("b") == second
        assert shells.lines() == ["start a", "start b", "start a"]


async def test_a_child_that_keeps_failing_ends_everything(shells: Shells) -> None:
    """Given up after so many failures in a row: the error has its last lines, and the others are stopped."""
    failing = shells.component("b", script="echo flag provided but not defined >&2; exit 2", needs=("a",))
    made = supervisor.Supervisor([shells.component("a"), failing], policy=QUICK, attempts=3)
    with pytest.raises(ExceptionGroup) as caught:
        await made.run()
    (error,) = caught.value.exceptions
    assert isinstance(error, errors.Retryable)
    for part in ("keep b running", "exit code 2", "3 times", "flag provided but not defined", "b.log"):
        assert part in str(error)
    assert shells.lines() == ["start a", "start b", "start b", "start b", "stop a"]


async def test_never_ready_is_a_failure(shells: Shells, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that runs and never gets ready is stopped and given up, with the probe's last complaint."""
    hung = shells.component("a", probe=Exists(shells.root / "never"), ready_seconds=3600)
    made = supervisor.Supervisor([hung], policy=QUICK, attempts=2)
    task = asyncio.create_task(made.run())
    for lines in (1, 3):
        await waiting.until(lambda lines=lines: len(shells.lines()) == lines)  # type: ignore[misc]
        virtual.pass_at_once(3600, monkeypatch)
    with pytest.raises(ExceptionGroup) as caught:
        await task
    assert "was not ready after 3600 s (no file)" in str(caught.value.exceptions[0])
    assert shells.lines() == ["start a", "stop a"] * 2


async def test_killed_by_a_signal_is_said(shells: Shells) -> None:
    """Of a child that the kernel killed, the signal is named: an OOM kill shows."""
    made = supervisor.Supervisor([shells.component("a", script="kill -9 $$")], policy=QUICK, attempts=1)
    with pytest.raises(ExceptionGroup) as caught:
        await made.run()
    assert "was killed by signal 9" in str(caught.value.exceptions[0])


async def test_the_stubborn_do_not_hold_up_the_end(shells: Shells, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ignores SIGTERM is killed after its time, and those that it needs stop then."""
    stubborn = shells.component("b", script="trap '' TERM", needs=("a",), stop_seconds=3600)
    made = supervisor.Supervisor([shells.component("a"), stubborn])
    task = asyncio.create_task(made.run())
    await made.ready("b").wait()
    pid = made.pid("b")
    task.cancel()
    await waiting.turns()
    virtual.pass_at_once(3600, monkeypatch)
    await background.end(task)
    assert shells.lines()[-1] == "stop a"
    assert pid is not None
    assert not psutil.pid_exists(pid)


def test_impossible_needs_are_refused(shells: Shells) -> None:
    """A need that is unknown or goes in a circle is a mistake of the program, found at once."""
    for needs in (("nobody",), ("a",)):
        with pytest.raises(ValueError, match="cannot be met"):
            supervisor.Supervisor([shells.component("a", needs=needs)])
