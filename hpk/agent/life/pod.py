"""The pod's life: init containers one by one, sidecars, then the app containers, and its end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.life import container, deadline, ephemeral, report, supervise

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import runs
    from hpk.agent.life import podcontext

MESSAGES = {
    "DeadlineExceeded": "Pod was active on the node longer than the specified deadline",
    "TimeLimit": "The Slurm job is about to reach its time limit",
    "Signalled": "Slurm ends the job: cancelled, out of time, or the node shuts down",
}
CLOCK_SECONDS = 10.0
"""How long the deadline waits for the kubelet's clock: by this node's it may have passed already."""
EVICTION_SECONDS = 1.0
"""The grace of an evicted pod (immediateEvictionGracePeriodSeconds)."""
_KILL_MARGIN_SECONDS = 2.5
"""Part of Slurm's KillWait that is kept for the last report and for cleaning."""


class PodRunner:
    """Runs all containers of the pod, and ends them."""

    def __init__(self, context: podcontext.PodContext, *, begun: dict[str, runs.ContainerRun | Exception]) -> None:
        self._context = context
        self._containers = [container.ContainerRunner(plan, context=context) for plan in context.plan["containers"]]
        for one in self._containers:
            if one.plan["name"] in begun:
                one.adopt(begun[one.plan["name"]])
        self._limit: deadline.Deadline | None = None
        self._has_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[container.ContainerRunner, asyncio.Task[bool]] = {}

    def find(self, name: str) -> container.ContainerRunner | None:
        """Return the container of this name, if the pod has one."""
        return next((one for one in self._containers if one.plan["name"] == name), None)

    def add(self, plan: records.ContainerPlan) -> None:
        """Start an ephemeral container, or give another container a new image.

        An ephemeral container is ignored if its name is taken, or if the pod has not begun or is ending.
        """
        name = plan["name"]
        if plan["kind"] != "ephemeral":
            if one := self.find(name):
                one.change(plan)
            return
        if self.find(name) or self._limit is not None or not self._has_begun:
            return
        reporter = self._context.reporter
        reporter.report["containers"][name] = report.waiting("ContainerCreating") | {"image_id": plan["image_id"]}
        reporter.changed()
        # If all processes are shared, there is no target to wait for.
        target = None if self._context.plan.get("share_processes") else self.find(plan.get("target", ""))
        one = ephemeral.EphemeralRunner(plan, context=self._context, target=target)
        self._containers.append(one)
        self._start(one)

    @property
    def _apps(self) -> list[container.ContainerRunner]:
        return [one for one in self._containers if one.plan["kind"] == "app"]

    async def live(self) -> None:
        """Run the pod to its end; return when none of its processes is left."""
        self._has_begun = True
        self._set_timer(None)
        try:
            if await self._initialize():
                await self._run_apps()
            await self._stop(self._limit or deadline.Deadline(self._context.plan["grace_seconds"]))
            await asyncio.gather(*self._tasks.values())
        finally:
            if self._timer:
                self._timer.cancel()
                self._timer = None

    def end(self, reason: str, *, message: str = "", grace_seconds: float | None = None) -> None:
        """End the pod. Later calls may only shorten the grace; the first reason stays."""
        plan, reporter = self._context.plan, self._context.reporter
        grace = float(plan["grace_seconds"] if grace_seconds is None else grace_seconds)
        if reason == "Signalled":
            grace = min(grace, max(1.0, self._context.box.facts.kill_wait_seconds - _KILL_MARGIN_SECONDS))
        if self._limit is not None:
            self._limit.shorten(grace)
            return
        self._limit = deadline.Deadline(grace)
        reporter.report["ended"] = {"reason": reason, "message": message or MESSAGES.get(reason, "")}
        reporter.changed()
        self._context.is_stopping.set()
        for one in self._containers:
            one.do_not_restart()

    def set_clock(self, ahead_seconds: float) -> bool:
        """Set how far this node's clock is ahead of the kubelet's, which set the deadline; return whether it is new."""
        if self._timer:
            self._timer.cancel()
            self._set_timer(ahead_seconds)
        return self._context.reporter.set_clock(ahead_seconds)

    def signal(self, number: int) -> None:
        """Send a signal to the first process of each running container."""
        for one in self._containers:
            if one.plan["kind"] != "ephemeral":
                one.signal(number)

    def evict(self, message: str) -> None:
        """End the pod because of its disk usage, with the kubelet's short grace."""
        self._context.reporter.event("Warning", "Evicted", message)
        self.end("Evicted", message=message, grace_seconds=EVICTION_SECONDS)

    def _set_timer(self, ahead_seconds: float | None) -> None:
        at = self._context.plan["deadline_at"]
        if at is None:
            return
        left = at + (ahead_seconds or 0.0) - time.time()
        least = CLOCK_SECONDS if ahead_seconds is None else 0.0
        self._timer = asyncio.get_running_loop().call_later(max(least, left), self.end, "DeadlineExceeded")

    async def _initialize(self) -> bool:
        """Run the init containers and sidecars; return whether the apps may start."""
        for one in self._containers:
            if one.plan["kind"] in {"app", "ephemeral"}:
                continue
            task = self._start(one)
            if one.is_init:
                await self._unless_stopping(one.progress.is_done)
                if not one.progress.is_done.is_set() or not await task:
                    return False
            else:
                await self._unless_stopping(one.progress.has_started)
            if self._context.is_stopping.is_set():
                return False
        return True

    async def _run_apps(self) -> None:
        """Start the apps in the plan's order, each after the previous one's postStart hook; wait for all."""
        for one in self._apps:
            self._start(one)
            if (one.plan.get("lifecycle") or {}).get("postStart"):
                await self._unless_stopping(one.progress.has_launched)
            if self._context.is_stopping.is_set():
                return
        for one in self._apps:
            await self._unless_stopping(one.progress.is_done)

    def _start(self, one: container.ContainerRunner) -> asyncio.Task[bool]:
        self._tasks[one] = asyncio.create_task(self._guarded(one), name=f"container {one.plan['name']}")
        return self._tasks[one]

    async def _guarded(self, one: container.ContainerRunner) -> bool:
        """Run a container; return whether its last run succeeded. A fault of ours ends it alone."""
        try:
            return await one.live()
        except Exception as error:  # noqa: BLE001 - as it says
            name = one.plan["name"]
            why = supervise.fault(f"life of container {name}", error)
            self._context.reporter.event("Warning", "AgentFault", why, container=name)
            return False

    async def _unless_stopping(self, event: asyncio.Event) -> None:
        """Wait for the event, or until the pod must end."""
        await aiotasks.first_of(event, self._context.is_stopping)

    async def _stop(self, limit: deadline.Deadline) -> None:
        """Stop apps, init and ephemeral containers at once, then sidecars from last to first."""
        self._limit = limit
        begun = [one for one in self._containers if one in self._tasks]
        sidecars = [one for one in begun if one.plan["kind"] == "sidecar"]
        turns = {one: asyncio.Event() for one in sidecars}

        async def call_up() -> None:
            for one in begun:
                if one not in turns and one.plan["kind"] != "ephemeral":
                    await one.progress.is_done.wait()
            for one in reversed(sidecars):
                turns[one].set()
                await one.progress.is_done.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(call_up())
            for one in begun:
                group.create_task(one.stop(limit, turn=turns.get(one)))
