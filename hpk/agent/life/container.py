"""One container over all its runs: start, end, restart with back-off, stop with grace."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.agent.boot import processes, runs, volumes
from hpk.agent.life import capturing, deadline, hooks, leftovers, logs, memory, messages, probes, restarts, supervise

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.life import podcontext

_KILLED = 137
_SIGNAL = re.compile(r"(?:SIG)?([A-Z]+[12]?|[0-9]{1,2})([+-][0-9]{1,2})?")
LEAST_SECONDS = 2.0
"""Between SIGTERM and SIGKILL, however much of the grace a preStop hook used (the kubelet's minimum)."""
CONFIGURATION_SECONDS = 10.0
"""How often it is tried again to configure a container."""
LOG_SECONDS = 2.0
"""How long a container that has ended waits for its last output to be written."""


class Container:
    """A container of the pod."""

    def __init__(self, plan: records.ContainerPlan, *, context: podcontext.PodContext) -> None:
        self.plan = plan
        self._context = context
        self._number = 0
        self._back_off = restarts.BackOff()
        self._process = 0
        self._begun: runs.Run | Exception | None = None
        self.run: runs.Run | None = None
        """The run whose process lives now."""
        self.capture: capturing.Capture | None = None
        """Of its output."""
        self.has_started = asyncio.Event()
        """Whether what comes after it may begin: its startup probe has passed, or it has none; or it never will."""
        self.has_launched = asyncio.Event()
        """Whether its first run has been tried and its postStart hook is done: the next app container may start."""
        self.is_done = asyncio.Event()
        """Whether it will not run any more."""
        self.is_up = asyncio.Event()
        """Whether its process lives, for who waits for that."""
        self._wants_stop = asyncio.Event()
        self._is_down = asyncio.Event()
        self._is_over_memory = False
        self._was_killed = False
        """By us, because its time was over."""
        self._has_changed = asyncio.Event()
        """Whether its image was changed since its last start."""

    @property
    def record(self) -> records.ContainerRecord:
        """Its part of the report."""
        return self._context.reporter.report["containers"][self.plan["name"]]

    @property
    def is_init(self) -> bool:
        """Whether it must succeed once, before others start."""
        return self.plan["kind"] == "init"

    @property
    def is_running(self) -> bool:
        """Whether its process lives."""
        return self._process != 0

    def adopt(self, begun: runs.Run | Exception) -> None:
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
            self.has_started.set()
            self.has_launched.set()
            self.is_done.set()

    async def _pause(self, ended: records.Terminated) -> bool:
        """Wait as the back-off says; whether to start again."""
        if self._wants_stop.is_set():
            return False
        # Not by the times of the record: a clock that is set must not make a pause of ten seconds an hour.
        seconds = self._back_off.pause_seconds(finished_at=time.monotonic())
        if seconds:
            name = self.plan["name"]
            pod_name, pause = self._context.pod_name, restarts.duration(seconds)
            self.record.update(
                {
                    "state": "waiting",
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {pause} restarting failed container={name} pod={pod_name}",
                    "last_terminated": ended,
                    "terminated": None,
                }
            )
            text = f"Back-off restarting failed container {name} in pod {pod_name}"
            self._context.reporter.event("Warning", "BackOff", text, container=name)
            self._context.reporter.changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await first_of(self._wants_stop, self._has_changed)
        if self._wants_stop.is_set():
            self.record.update({"state": "terminated", "reason": "", "message": "", "terminated": ended})
            self._context.reporter.changed()
            return False
        self._back_off.restarted(at=time.monotonic())
        return True

    async def _run_once(self) -> records.Terminated | None:
        """One run, from crun to the last byte of its log; None if the container is stopped before it can be made."""
        begun: runs.Run | Exception
        if self._begun is None and self._has_changed.is_set():
            self._has_changed.clear()
            begun = await self._begin_anew()
        else:
            begun, self._begun = self._begun or begin(self._context, self.plan, self._number), None
        while isinstance(begun, volumes.SubPathFailed):
            if not await self._wait_for_configuration(str(begun)):
                return None
            begun = begin(self._context, self.plan, self._number)
        if isinstance(begun, Exception):
            return self._failed(str(begun))
        try:
            return await self._run(begun)
        except Exception as error:  # noqa: BLE001 - a fault of ours is the end of this run, not of the pod
            why = supervise.fault(f"watch over container {self.plan['name']}", error)
            if begun.process_id and self._context.reaper.is_running(begun.process_id):
                os.kill(begun.process_id, 9)
            return self._failed(why)

    async def _wait_for_configuration(self, why: str) -> bool:
        """Say why the container cannot be configured, and wait a while; whether to try again."""
        record, name = self.record, self.plan["name"]
        if record["message"] != why:
            self._context.reporter.event("Warning", "Failed", f"Error: {why}", container=name)
        last = record["terminated"] or record["last_terminated"]
        waiting = {"state": "waiting", "reason": "CreateContainerConfigError", "message": why}
        record.update({**waiting, "terminated": None, "last_terminated": last})  # type: ignore[typeddict-item]
        self._context.reporter.changed()
        self.has_launched.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIGURATION_SECONDS):
                await self._wants_stop.wait()
        return not self._wants_stop.is_set()

    async def _run(self, begun: runs.Run) -> records.Terminated:
        file = self._log(begun)
        speaks = self.plan["termination_message_policy"] == messages.FALLBACK
        capture = capturing.Capture(begun.outputs, file=file, writer=self._context.writer, keeps_end=speaks)
        try:
            status = begun.created
            if status is None:
                status = await self._context.reaper.wait(begun.starter, since=begun.begun)
            if status != 0:
                await capture.finish(timeout_seconds=LOG_SECONDS)
                return self._failed(_runtime_message(begun))
            return await self._attend(begun, capture)
        finally:
            self._context.retire(begun)

    async def _begin_anew(self) -> runs.Run | Exception:
        """Begin the first run with a new image, which the pod may not have had."""
        self.record["image_id"] = self.plan["image_id"]
        try:
            await self._mount()
        except OSError as error:
            return error
        return begin(self._context, self.plan, self._number)

    async def _mount(self) -> None:
        """Mount the plan's image.

        Raises:
            OSError: It is not in sight, or no process can be had.
        """
        file, offset = self.plan["image_file"], self.plan["image_offset"]
        box = self._context.box
        if file.startswith(jobdir.SANDBOX_HOST + "/") and not os.path.exists(file):  # noqa: ASYNC240 - one look
            raise FileNotFoundError(
                f"Cannot see the image {self.plan['image']} in this pod, which has no path of its node's"
                " (a hostPath volume, or an image that is a SIF file)"
            )
        async with self._context.mounting:  # two may need the same image
            since = time.monotonic()
            box.images.start(file, offset=offset)
            if process := box.images.started(file, offset=offset):
                status = await self._context.reaper.wait(process, since=since)
                box.images.settled(file, offset=offset, status=status)

    async def _attend(self, run: runs.Run, capture: capturing.Capture) -> records.Terminated:
        """From the start of the process to its end."""
        if not run.process_id:
            try:
                runs.launch(self._context.box, run)
            except OSError as error:
                await capture.finish(timeout_seconds=LOG_SECONDS)
                return self._failed(str(error))
        capture.follow(run.outputs)  # a terminal is there only now
        self._process = run.process_id
        self.run, self.capture = run, capture
        end = self._context.reaper.wait(self._process, since=run.begun)
        self._is_down.clear()
        self.is_up.set()
        self._is_over_memory = self._was_killed = False
        companions: list[asyncio.Task[None]] = []
        try:
            self._now_running(run)
            self._restart_changed()
            companions.append(asyncio.create_task(self._accompany()))
            with self._within_memory(run):
                status = await end
            leftovers.kill(run)
        finally:
            self._process = 0
            self.run = self.capture = None
            self.is_up.clear()
            self._is_down.set()
            for companion in companions:
                companion.cancel()
            await asyncio.gather(*companions, return_exceptions=True)
        finished_at = time.time()
        if processes.exit_code(status) == _KILLED and not self._was_killed:
            self._is_over_memory |= self._context.memory.kills.rose(since=run.kills_before)
        await capture.finish(timeout_seconds=LOG_SECONDS)
        return self._ended(run, status, finished_at=finished_at, log=capture.end)

    def _within_memory(self, run: runs.Run) -> contextlib.AbstractContextManager[None]:
        """While the container runs, have it killed when it holds more memory than it may."""
        limit = self.plan.get("memory_limit")
        if not limit:
            return contextlib.nullcontext()
        own = self._context.box.own_tmpfs(self.plan)
        one = memory.Watched(run.process_id, limit, self._exceed_memory, tmpfs=own)
        return self._context.memory.watching(one)

    def _exceed_memory(self) -> None:
        self._is_over_memory = True
        self.signal(9)

    async def _accompany(self) -> None:
        """What happens beside the process: the postStart hook, then the probes."""
        lifecycle = self.plan.get("lifecycle") or {}
        if hook := lifecycle.get("postStart"):
            failure = await hooks.run(self._context, self, hook)
            if failure:
                name = self.plan["name"]
                self._context.reporter.event("Warning", "FailedPostStartHook", "PostStartHook failed", container=name)
                print(f"container {name}: {failure}", flush=True)  # noqa: T201 - the job's output is the log
                await self.restart("FailedPostStartHook")
                return
        self.has_launched.set()
        await supervise.restarted(lambda: probes.watch(self._context, self), name="probes", on_fault=self._faulted)

    # -- what probes find ---------------------------------------------------------------------------------------

    def set_started(self) -> None:
        """The startup probe has passed, or there is none."""
        self.record["started"] = True
        self.has_started.set()
        self._context.reporter.changed()

    def set_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a setter
        """The readiness probe's word."""
        if self.record["ready"] != is_ready and self.is_running:
            self.record["ready"] = is_ready
            self._context.reporter.changed()

    @property
    def may_restart(self) -> bool:
        """Whether a killed process would be followed by another."""
        policy = self.plan["restart_policy"] or self._context.plan["restart_policy"]
        return restarts.should_restart(policy, exit_code=137, is_init=self.is_init)

    async def restart(self, why: str, *, grace_seconds: float | None = None) -> None:
        """Kill the process with grace; its restart policy says what comes then."""
        self._context.reporter.event("Normal", "Killing", why, container=self.plan["name"])
        limit = deadline.Deadline(self._context.plan["grace_seconds"] if grace_seconds is None else grace_seconds)
        await self._terminate(limit, turn=None)

    def change(self, plan: records.ContainerPlan) -> None:
        """Run by another plan, of another image, from the next start on; which is now where it runs, but for an init.

        As the kubelet does whose container's hash changes (kuberuntime_manager.go, computePodActions).
        """
        if plan["image"] == self.plan["image"]:
            return
        self.plan = plan
        self.record["image"] = plan["image"]
        self._back_off = restarts.BackOff()
        self._has_changed.set()
        self._context.reporter.changed()
        self._restart_changed()

    def _restart_changed(self) -> None:
        """Restart a container that runs by an older plan, perhaps since it was begun before the change came."""
        if self._has_changed.is_set() and self.is_running and not self.is_init and not self._wants_stop.is_set():
            why = f"Container {self.plan['name']} definition changed, will be restarted"
            self._context.in_background(self.restart(why))

    # -- stopping -----------------------------------------------------------------------------------------------

    def do_not_restart(self) -> None:
        """From now on an end is the end."""
        self._wants_stop.set()

    async def stop(self, limit: deadline.Deadline, *, turn: asyncio.Event | None = None) -> None:
        """End the container for good: hook, one's turn, stop signal, and SIGKILL when the limit is over."""
        self.do_not_restart()
        while not self.is_done.is_set():
            if self.is_running:
                name = self.plan["name"]
                self._context.reporter.event("Normal", "Killing", f"Stopping container {name}", container=name)
                await self._terminate(limit, turn=turn)
                await self.is_done.wait()
            elif not await limit.allows(self._is_running_or_done()):
                await self._is_running_or_done()  # starting takes moments; then it is killed

    async def _is_running_or_done(self) -> None:
        await first_of(self.is_up, self.is_done)

    async def _terminate(self, limit: deadline.Deadline, *, turn: asyncio.Event | None) -> None:
        hook = (self.plan.get("lifecycle") or {}).get("preStop")
        if hook and limit.left_seconds > 0:
            await limit.allows(self._pre_stop(hook))
        if turn is not None:
            await limit.allows(turn.wait())
        self.signal(signal_number(self.plan["stop_signal"]))
        least = LEAST_SECONDS if hook or turn else 0.0
        if not await limit.allows(self._is_down.wait(), least_seconds=least):
            self._was_killed = True
            self.signal(9)
            await self._is_down.wait()

    async def _pre_stop(self, hook: dict[str, object]) -> None:
        if failure := await hooks.run(self._context, self, hook):
            name = self.plan["name"]
            self._context.reporter.event("Warning", "FailedPreStopHook", "PreStopHook failed", container=name)
            print(f"container {name}: {failure}", flush=True)  # noqa: T201 - the job's output is the log

    def signal(self, number: int) -> None:
        """Send a signal to its process, if that lives."""
        if self._process and self._context.reaper.is_running(self._process):
            os.kill(self._process, number)

    def _faulted(self, why: str) -> None:
        self._context.reporter.event("Warning", "AgentFault", why, container=self.plan["name"])

    # -- the record ---------------------------------------------------------------------------------------------

    def _log(self, run: runs.Run) -> logs.LogFile:
        name = self.plan["name"]

        def trouble(why: str) -> None:
            self._context.reporter.event("Warning", "LogLost", why, container=name)

        limits = logs.Limits(**self._context.plan.get("log_limits", {}))
        return logs.LogFile(self._context.box.places.pod.log(name, run.number), on_trouble=trouble, limits=limits)

    def _now_running(self, run: runs.Run) -> None:
        record, name = self.record, self.plan["name"]
        last = record["terminated"] or record["last_terminated"]
        has_startup = bool(self.plan.get("startup_probe"))
        has_readiness = bool(self.plan.get("readiness_probe"))
        record.update(
            {
                "state": "running",
                "reason": "",
                "message": "",
                "started_at": run.started_at,
                "terminated": None,
                "last_terminated": last,
                "restart_count": run.number,
                "started": not has_startup and not self.is_init,
                "ready": not has_readiness and not has_startup and not self.is_init,
                "container_id": run.id,
            }
        )
        self._context.reporter.event("Normal", "Created", "Container created", container=name)
        self._context.reporter.event("Normal", "Started", "Container started", container=name)
        self._context.reporter.changed()
        if not has_startup:
            self.has_started.set()

    def _ended(self, run: runs.Run, status: int, *, finished_at: float, log: bytes) -> records.Terminated:
        code = processes.exit_code(status)
        if status != 0 and (said := _runtime_message(run, default="")):
            return self._failed(said)  # the very last step, execve, failed after crun had reported success
        policy = self.plan["termination_message_policy"]
        terminated: records.Terminated = {
            "exit_code": code,
            "signal": status & 0x7F,
            "reason": "OOMKilled" if self._is_over_memory else "Completed" if code == 0 else "Error",
            "message": messages.termination_message(run.message_file, policy=policy, exit_code=code, log=log),
            "started_at": run.started_at,
            "finished_at": finished_at,
            "container_id": run.id,
        }
        self._terminated(terminated)
        return terminated

    def _failed(self, why: str) -> records.Terminated:
        """It could not be started: exit code 128, as containerd and the kubelet have it."""
        now = time.time()
        name = self.plan["name"]
        terminated: records.Terminated = {
            "exit_code": 128,
            "signal": 0,
            "reason": "StartError",
            "message": why,
            "started_at": now,
            "finished_at": now,
            "container_id": "",
        }
        self._context.reporter.event("Warning", "Failed", f"Error: {why}", container=name)
        self._terminated(terminated)
        return terminated

    def _terminated(self, terminated: records.Terminated) -> None:
        record = self.record
        record.update(
            {
                "state": "terminated",
                "reason": "",
                "message": "",
                "last_terminated": record["terminated"] or record["last_terminated"],
                "terminated": terminated,
                "restart_count": self._number,
                "started": False,
                "ready": self.is_init and terminated["exit_code"] == 0,
            }
        )
        self._context.reporter.changed()


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    tasks = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def begin(
    context: podcontext.PodContext, plan: records.ContainerPlan, number: int, *, neighbour: runs.Run | None = None
) -> runs.Run | Exception:
    """Start crun, or say why that cannot be; a container's faults are its own, not the agent's."""
    try:
        return runs.begin(context.box, plan, number, neighbour=neighbour)
    except (OSError, LookupError, ValueError, TypeError) as error:
        return error


def _runtime_message(run: runs.Run, *, default: str = "crun could not start the container") -> str:
    try:
        with open(run.runtime_log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
    except OSError:
        return default
    return lines[-1] if lines else default


def signal_number(name: str) -> int:
    """The number of a stop signal: ``SIGTERM``, ``TERM``, ``15``, ``SIGRTMIN+3``; SIGTERM for anything else.

    An image may say anything.
    """
    found = _SIGNAL.fullmatch(name.strip().upper())
    if not found:
        return signal.SIGTERM
    word, offset = found[1], int(found[2] or 0)
    base = int(word) if word.isdecimal() else int(getattr(signal, f"SIG{word}", 0))
    is_known = bool(base) and (not offset or word in ("RTMIN", "RTMAX"))
    return base + offset if is_known and base + offset in signal.valid_signals() else signal.SIGTERM
