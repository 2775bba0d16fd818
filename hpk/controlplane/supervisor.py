"""Child processes that start in dependency order, are restarted with back-off, and stop in reverse.

Each child has a task, all in one TaskGroup. A child that keeps failing ends the group with its last lines of output.
The end of the group cancels all tasks at once; each then waits for its dependents before it stops its own process::

    waiting for needs ──► running ──► ready ──► (exit) ──► pause ──► running …
           │                 │          │                    │
           └────────────── cancelled: wait for dependents, TERM, wait, KILL
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from hpk import errors
from hpk.aio import backoff, forever, process

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpk.controlplane.component import Component

ATTEMPTS = 5
"""Consecutive failures after which a child is given up: eight seconds or more with the pauses between."""
PROBE_SECONDS = 0.05
"""Interval of readiness probes. Each costs a millisecond, and the start waits for the result."""

logger = structlog.get_logger(__name__)


class Supervisor:
    """A supervisor of components."""

    def __init__(
        self,
        components: Iterable[Component],
        *,
        policy: backoff.BackoffPolicy | None = None,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Prepare the children; nothing starts yet.

        Raises:
            ValueError: A dependency is unknown or circular.
        """
        self._children: dict[str, _Child] = {}
        for component in in_order(components):
            needs = [self._children[name] for name in component.needs]
            child = _Child(component, needs=needs, backoff=backoff.Backoff(policy), attempts=attempts)
            for need in needs:
                need.dependents.append(child)
            self._children[component.name] = child

    def ready(self, name: str) -> asyncio.Event:
        """Return the event that is set while the component is ready."""
        return self._children[name].ready

    def pid(self, name: str) -> int | None:
        """Return the PID of the component's process, or None while it has none."""
        child = self._children[name].process
        return child.pid if child and child.exit_code is None else None

    async def run(self) -> None:
        """Run all components until cancelled, then stop them in reverse order.

        Raises:
            ExceptionGroup: A component was given up; contains an errors.Retryable.
        """
        async with asyncio.TaskGroup() as group:
            for child in self._children.values():
                task = group.create_task(forever.forever(child.name, child.run()), name=child.name)
                # Not in run's own finally: a task that is cancelled before it first runs never gets there.
                task.add_done_callback(child.has_stopped)


def in_order(components: Iterable[Component]) -> list[Component]:
    """Return the components in dependency order, otherwise in the given order.

    Raises:
        ValueError: A dependency is unknown or circular.
    """
    left = {component.name: component for component in components}
    done: dict[str, Component] = {}
    while left:
        name = next((name for name, component in left.items() if done.keys() >= set(component.needs)), None)
        if name is None:
            needs = {component.name: component.needs for component in left.values()}
            raise ValueError(f"needs that cannot be met: {needs}")
        done[name] = left.pop(name)
    return list(done.values())


class _Child:
    def __init__(self, component: Component, *, needs: list[_Child], backoff: backoff.Backoff, attempts: int) -> None:
        self.name = component.name
        self.ready = asyncio.Event()
        self.dependents: list[_Child] = []
        self.process: process.Process | None = None
        self._stopped = asyncio.Event()
        self._component = component
        self._needs = needs
        self._backoff = backoff
        self._attempts = attempts

    def has_stopped(self, _: object) -> None:
        self._stopped.set()

    async def run(self) -> None:
        for need in self._needs:
            await need.ready.wait()
        while True:
            self._backoff.started()
            try:
                trouble = await self._run_once()
            except errors.Retryable as error:  # no space for a process: the next attempt may succeed
                trouble = f"could not be started ({error})"
            pause = self._backoff.failed()
            last = "\n".join(self.process.last_lines) if self.process else ""
            if self._backoff.failures >= self._attempts:
                raise errors.Retryable(
                    f"Cannot keep {self.name} running: it {trouble}, {self._backoff.failures} times in a row.  "
                    f"Its log is {self._component.log}; the last lines:\n{last}"
                )
            logger.warning(
                "Cannot keep a component running; starting it again",
                component=self.name,
                trouble=trouble,
                pause_seconds=round(pause, 1),
                last=last,
            )
            await asyncio.sleep(pause)

    async def _run_once(self) -> str:
        """Run the process to its end, and return why it ended, as a verb phrase."""
        component = self._component
        started_at = asyncio.get_running_loop().time()
        self.process = await process.start(self.name, component.argv, env=component.env, log=component.log)
        becoming = asyncio.create_task(self._become_ready(started_at), name=f"readiness of {self.name}")
        ending = asyncio.create_task(self.process.wait(), name=f"end of {self.name}")
        try:
            await asyncio.wait({becoming, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done() and (trouble := becoming.result()) is not None:
                return f"was not ready after {component.ready_seconds:.0f} s ({trouble})"
            return _how_it_ended(await ending)
        except asyncio.CancelledError:
            await asyncio.gather(*(child._stopped.wait() for child in self.dependents))  # noqa: SLF001 - our own class
            raise
        finally:
            self.ready.clear()
            becoming.cancel()
            ending.cancel()
            await self.process.stop(grace_seconds=component.stop_seconds)

    async def _become_ready(self, started_at: float) -> str | None:
        """Set ready when the probe succeeds; after the timeout, return its last complaint."""
        loop = asyncio.get_running_loop()
        end = started_at + self._component.ready_seconds
        while self._component.probe and (trouble := await self._component.probe()) is not None:
            if loop.time() > end:
                return trouble
            await asyncio.sleep(PROBE_SECONDS)
        self.ready.set()
        logger.info("A component is ready", component=self.name, seconds=round(loop.time() - started_at, 2))
        return None


def _how_it_ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
