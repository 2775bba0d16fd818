"""One container over all its runs: start, end, restart with back-off, stop with grace."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.boot import volumes
from hpk.agent.life import recording, restarts, running, starting, supervise

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import runs
    from hpk.agent.life import capturing, deadline, podcontext

CONFIGURATION_SECONDS = 10.0
"""How often it is tried again to configure a container."""


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
        """Whether its image was changed since its last start."""

    @property
    def record(self) -> records.ContainerRecord:
        """Its part of the report."""
        return self._recorder.record

    @property
    def is_init(self) -> bool:
        """Whether it must succeed once, before others start."""
        return self.plan["kind"] == "init"

    @property
    def run(self) -> runs.ContainerRun | None:
        """The run whose process lives now."""
        return self._running.run if self._running else None

    @property
    def capture(self) -> capturing.Capture | None:
        """Of that run's output."""
        return self._running.capture if self._running else None

    def adopt(self, begun: runs.ContainerRun | Exception) -> None:
        """Take over the first run, which began before the event loop did."""
        self._begun = begun

    # -- life ---------------------------------------------------------------------------------------------------

    async def live(self) -> bool:
        """Run and restart until it is done; whether its last run succeeded."""
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
        """Wait as the back-off says; whether to start again."""
        if self._wants_stop.is_set():
            return False
        # Not by the times of the record: a clock that is set must not make a pause of ten seconds an hour.
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
        """One run, from crun to the last byte of its log; None if the container is stopped before it can be made."""
        begun: runs.ContainerRun | Exception
        if self._begun is None and self._has_changed.is_set():
            self._has_changed.clear()
            self.record["image_id"] = self.plan["image_id"]
            begun = await starting.begin_anew(self._context, self.plan, self._number)
        else:
            begun = self._begun or starting.begin(self._context, self.plan, self._number)
            self._begun = None
        while isinstance(begun, volumes.SubPathFailed):
            if not await self._wait_for_configuration(str(begun)):
                return None
            begun = starting.begin(self._context, self.plan, self._number)
        if isinstance(begun, Exception):
            return self._recorder.failed(str(begun), number=self._number)
        try:
            return await self._attend(begun)
        except Exception as error:  # noqa: BLE001 - a fault of ours is the end of this run, not of the pod
            why = supervise.fault(f"watch over container {self.plan['name']}", error)
            if begun.process_id and self._context.reaper.is_running(begun.process_id):
                os.kill(begun.process_id, 9)
            return self._recorder.failed(why, number=self._number)

    async def _wait_for_configuration(self, why: str) -> bool:
        """Say why the container cannot be configured, and wait a while; whether to try again."""
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

    # -- what the pod asks for ----------------------------------------------------------------------------------

    def change(self, plan: records.ContainerPlan) -> None:
        """Run by another plan, of another image, from the next start on; which is now where it runs, but for an init.

        As the kubelet does whose container's hash changes (kuberuntime_manager.go, computePodActions).
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
        """Restart a container that runs by an older plan, perhaps since it was begun before the change came."""
        if (
            self._has_changed.is_set()
            and self._running
            and self.run
            and not self.is_init
            and not self._wants_stop.is_set()
        ):
            why = f"Container {self.plan['name']} definition changed, will be restarted"
            self._context.in_background(self._running.restart(why))

    def do_not_restart(self) -> None:
        """From now on an end is the end."""
        self._wants_stop.set()

    async def stop(self, limit: deadline.Deadline, *, turn: asyncio.Event | None = None) -> None:
        """End the container for good: hook, one's turn, stop signal, and SIGKILL when the limit is over."""
        self.do_not_restart()
        is_up, is_done = self.progress.is_up, self.progress.is_done
        while not is_done.is_set():
            if self._running and self._running.is_running:
                self._recorder.event("Normal", "Killing", f"Stopping container {self.plan['name']}")
                await self._running.terminate(limit, turn=turn)
                await is_done.wait()
            elif not await limit.allows(aiotasks.first_of(is_up, is_done)):
                await aiotasks.first_of(is_up, is_done)  # starting takes moments; then it is killed

    def signal(self, number: int) -> None:
        """Send a signal to its process, if that lives."""
        if self._running:
            self._running.signal(number)
