"""One container over all its runs: start, end, restart with back-off, stop with grace."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.boot import runs, volumes
from hpk.agent.life import recording, restarts, running, starting, supervise

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.life import capturing, deadline, podcontext

CONFIGURATION_SECONDS = 10.0
"""Pause between attempts to configure a container."""


class ContainerRunner:
    """A container of the pod."""

    def __init__(self, plan: records.ContainerPlan, *, context: podcontext.PodContext) -> None:
        self.plan = plan
        self.progress = running.Progress()
        self._context = context
        self._recorder = recording.ReportRecorder(context.reporter, plan["name"], is_init=self.is_init)
        self._number = 0
        self._back_off = restarts.BackOff()
        self._begun: runs.ContainerRun | Exception | None = None
        self._running: running.RunningContainer | None = None
        self._wants_stop = asyncio.Event()
        self._has_changed = asyncio.Event()
        """Whether its image has changed since its last start."""
        self._is_mounted = True
        """Whether the image of its last start is mounted, as all are that the pod starts with."""

    @property
    def record(self) -> records.ContainerRecord:
        """Its part of the report."""
        return self._recorder.record

    @property
    def is_init(self) -> bool:
        """Whether it must succeed once before others start."""
        return self.plan["kind"] == "init"

    @property
    def run(self) -> runs.ContainerRun | None:
        """The run whose process is alive."""
        return self._running.run if self._running else None

    @property
    def capture(self) -> capturing.Capture | None:
        """The output of that run."""
        return self._running.capture if self._running else None

    def adopt(self, begun: runs.ContainerRun | Exception) -> None:
        """Take over the first run, which began before the event loop did."""
        self._begun = begun

    # -- life ---------------------------------------------------------------------------------------------------

    async def live(self) -> bool:
        """Run and restart it until it is done; return whether its last run succeeded."""
        try:
            while True:
                ended = await self._run_once()
                if ended is None:
                    return False
                policy = self.plan["restart_policy"] or self._context.plan["restart_policy"]
                again = restarts.should_restart(policy, exit_code=ended["exit_code"], is_init=self.is_init)
                again = again or (self._has_changed.is_set() and not self.is_init)
                if not again or not await self._pause(ended):
                    return ended["exit_code"] == 0
                self._number += 1
        finally:
            self.progress.has_started.set()
            self.progress.has_launched.set()
            self.progress.is_done.set()

    async def _pause(self, ended: records.Terminated) -> bool:
        """Wait for the back-off; return whether to start again."""
        if self._wants_stop.is_set():
            return False
        # Not by the record's times: setting the clock must not turn ten seconds into an hour.
        seconds = self._back_off.pause_seconds(finished_at=time.monotonic())
        if seconds:
            self._recorder.backing_off(seconds, pod=self._context.pod_name)
            await aiotasks.in_time(aiotasks.first_of(self._wants_stop, self._has_changed), seconds)
        if self._wants_stop.is_set():
            self._recorder.not_restarted(ended)
            return False
        self._back_off.restarted(at=time.monotonic())
        return True

    async def _run_once(self) -> records.Terminated | None:
        """Run it once, from crun to the end of its log; return None if it is stopped before it can start."""
        begun = self._begun or await self._begin()
        self._begun = None
        while isinstance(begun, volumes.SubPathFailed):
            if not await self._wait_for_configuration(str(begun)):
                return None
            begun = await self._begin()
        if isinstance(begun, Exception):
            return self._recorder.failed(str(begun), number=self._number)
        try:
            return await self._attend(begun)
        except Exception as error:  # noqa: BLE001 - our fault ends this run, not the pod
            why = supervise.fault(f"watch over container {self.plan['name']}", error)
            if begun.process_id and self._context.reaper.is_running(begun.process_id):
                os.kill(begun.process_id, 9)
            return self._recorder.failed(why, number=self._number)

    async def _begin(self, *, neighbour: runs.ContainerRun | None = None) -> runs.ContainerRun | Exception:
        """Start crun for the next run, or return what went wrong: a container's faults are not the agent's."""
        plan = self.plan  # it may change while its image is mounted
        if self._has_changed.is_set():
            self._has_changed.clear()
            self.record["image_id"] = plan["image_id"]
            self._is_mounted = False
        if not self._is_mounted and (failure := await starting.mount(self._context, plan)):
            return failure
        self._is_mounted = True
        try:
            return runs.begin(self._context.box, plan, self._number, neighbour=neighbour)
        except (OSError, LookupError, ValueError, TypeError) as error:
            return error

    async def _wait_for_configuration(self, why: str) -> bool:
        """Report why it cannot be configured, and wait; return whether to try again."""
        if self.record["message"] != why:
            self._recorder.event("Warning", "Failed", f"Error: {why}")
        self._recorder.waiting("CreateContainerConfigError", why)
        self.progress.has_launched.set()
        await aiotasks.in_time(self._wants_stop.wait(), CONFIGURATION_SECONDS)
        return not self._wants_stop.is_set()

    async def _attend(self, run: runs.ContainerRun) -> records.Terminated:
        self._running = running.RunningContainer(
            self._context,
            run,
            self.plan,
            recorder=self._recorder,
            progress=self.progress,
            on_running=self._restart_changed,
        )
        try:
            return await self._running.attend()
        finally:
            self._running = None

    # -- the pod's requests --------------------------------------------------------------------------------------

    def change(self, plan: records.ContainerPlan) -> None:
        """Use another plan, with another image, from the next start on; restart it now if it runs, except an init.

        The kubelet does the same if a container's hash changes (kuberuntime_manager.go, computePodActions).
        """
        if plan["image"] == self.plan["image"]:
            return
        self.plan = plan
        if self._running:
            self._running.plan = plan
        self._back_off = restarts.BackOff()
        self._has_changed.set()
        self._recorder.image_changed(plan["image"])
        self._restart_changed()

    def _restart_changed(self) -> None:
        """Restart it if it runs by an older plan, perhaps begun before the change came."""
        may_restart = not self.is_init and not self._wants_stop.is_set()
        if self._has_changed.is_set() and self._running and self.run and may_restart:
            why = f"Container {self.plan['name']} definition changed, will be restarted"
            self._context.in_background(self._running.restart(why))

    def do_not_restart(self) -> None:
        """Make its next end final."""
        self._wants_stop.set()

    async def stop(self, limit: deadline.Deadline, *, turn: asyncio.Event | None = None) -> None:
        """End it for good: preStop hook, its turn, stop signal, and SIGKILL at the limit."""
        self.do_not_restart()
        is_up, is_done = self.progress.is_up, self.progress.is_done
        while not is_done.is_set():
            if self._running and self._running.is_running:
                self._recorder.event("Normal", "Killing", f"Stopping container {self.plan['name']}")
                await self._running.terminate(limit, turn=turn)
                await is_done.wait()
            elif not await limit.allows(aiotasks.first_of(is_up, is_done)):
                await aiotasks.first_of(is_up, is_done)  # it starts within moments, and is then killed

    def signal(self, number: int) -> None:
        """Send a signal to its process, if that is alive."""
        if self._running:
            self._running.signal(number)
