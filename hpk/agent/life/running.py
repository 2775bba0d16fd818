"""Follows one run of a container, from crun's result to the end of its log: hooks, probes, memory limit, stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import time
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.boot import processes, runs
from hpk.agent.life import (
    capturing,
    deadline,
    hooks,
    leftovers,
    logs,
    memory,
    messages,
    probes,
    restarts,
    starting,
    supervise,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records
    from hpk.agent.life import podcontext, recording

_KILLED = 137
_SIGNAL = re.compile(r"(?:SIG)?([A-Z]+[12]?|[0-9]{1,2})([+-][0-9]{1,2})?")
_NO_WORDS = "crun could not start the container"
LEAST_SECONDS = 2.0
"""Least time between SIGTERM and SIGKILL, however much of the grace a preStop hook used (the kubelet's minimum)."""
LOG_SECONDS = 2.0
"""How long a container that has ended waits for its last output to be written."""


class Progress:
    """How far a container is, over all its runs: what others wait for."""

    def __init__(self) -> None:
        self.is_up = asyncio.Event()
        """Its process is alive."""
        self.has_launched = asyncio.Event()
        """Its first run was tried and its postStart hook is done: the next app container may start."""
        self.has_started = asyncio.Event()
        """What follows it may start: its startup probe has passed, or it has none, or it will never pass."""
        self.is_done = asyncio.Event()
        """It will not run any more."""


class RunningContainer:
    """Follows a run that crun was asked for; its probes act on it."""

    def __init__(
        self,
        context: podcontext.PodContext,
        run: runs.ContainerRun,
        plan: records.ContainerPlan,
        *,
        recorder: recording.ReportRecorder,
        progress: Progress,
        on_running: Callable[[], None],
    ) -> None:
        """Follow a run; its plan may be newer than the one with which it began."""
        self._context, self._run, self.plan = context, run, plan
        self._recorder, self._progress, self._on_running = recorder, progress, on_running
        self._is_down = asyncio.Event()
        self._is_over_memory = False
        self._was_killed = False
        """Whether we killed it because its time was over."""
        self.capture: capturing.Capture | None = None
        """Its output, while its process is alive."""

    @property
    def run(self) -> runs.ContainerRun | None:
        """The run, while its process is alive."""
        return self._run if self.is_running else None

    @property
    def is_running(self) -> bool:
        """Whether its process is alive."""
        return self.capture is not None

    async def attend(self) -> records.Terminated:
        """Follow the run to its end, and remove what it leaves; return how it ended.

        Raises:
            Exception: A fault of ours; the process may be alive.
        """
        run, context = self._run, self._context
        keeps_end = self.plan["termination_message_policy"] == messages.FALLBACK
        capture = capturing.Capture(run.outputs, file=self._log(), writer=context.writer, keeps_end=keeps_end)
        try:
            status = run.created
            if status is None:
                status = await context.reaper.wait(run.starter, since=run.begun)
            failure: object = self._launch() if status == 0 else starting.last_line(run.runtime_log) or _NO_WORDS
            if failure is not None:
                await capture.finish(timeout_seconds=LOG_SECONDS)
                return self._recorder.failed(str(failure), number=run.number)
            return await self._attend_process(capture)
        finally:
            context.retire(run)

    def _launch(self) -> OSError | None:
        """Let the process go, unless it was let go before; return the error, if any."""
        try:
            if not self._run.process_id:
                runs.launch(self._context.box, self._run)
        except OSError as error:
            return error
        return None

    async def _attend_process(self, capture: capturing.Capture) -> records.Terminated:
        """Follow the process from its start to its end; return how it ended."""
        run = self._run
        capture.follow(run.outputs)  # a terminal is there only now
        end = self._context.reaper.wait(run.process_id, since=run.begun)
        self.capture = capture
        self._progress.is_up.set()
        companions: list[asyncio.Task[None]] = []
        try:
            self._recorder.running(run, self.plan)
            if not self.plan.get("startup_probe"):
                self._progress.has_started.set()
            self._on_running()
            companions.append(asyncio.create_task(self._accompany()))
            with self._within_memory():
                status = await end
            leftovers.kill(run)
        finally:
            self.capture = None
            self._progress.is_up.clear()
            self._is_down.set()
            await aiotasks.cancel(*companions)
        finished_at = time.time()
        if processes.exit_code(status) == _KILLED and not self._was_killed:
            self._is_over_memory |= self._context.memory.kills.rose(since=run.kills_before)
        await capture.finish(timeout_seconds=LOG_SECONDS)
        return self._ended(status, finished_at=finished_at, log=capture.end)

    def _ended(self, status: int, *, finished_at: float, log: bytes) -> records.Terminated:
        run, policy = self._run, self.plan["termination_message_policy"]
        if status != 0 and (said := starting.last_line(run.runtime_log)):
            # execve, the last step, failed after crun had reported success
            return self._recorder.failed(said, number=run.number)
        code = processes.exit_code(status)
        message = messages.termination_message(run.message_file, policy=policy, exit_code=code, log=log)
        return self._recorder.ended(
            run, status, finished_at=finished_at, message=message, is_over_memory=self._is_over_memory
        )

    def _log(self) -> logs.LogFile:
        name, plan = self.plan["name"], self._context.plan

        def trouble(why: str) -> None:
            self._recorder.event("Warning", "LogLost", why)

        path = self._context.box.places.pod.log(name, self._run.number)
        return logs.LogFile(path, on_trouble=trouble, limits=logs.Limits(**plan.get("log_limits", {})))

    # -- beside the process -------------------------------------------------------------------------------------

    async def _accompany(self) -> None:
        """Run the postStart hook, then the probes."""
        if not await self._run_hook("PostStart", "postStart"):
            await self.restart("FailedPostStartHook")
            return
        self._progress.has_launched.set()
        await supervise.restarted(
            lambda: probes.watch(self._context, self), name="probes", on_fault=self._recorder.faulted
        )

    async def _run_hook(self, kind: str, field: str) -> bool:
        """Run a hook to its end; return whether it succeeded, or does not exist."""
        hook = (self.plan.get("lifecycle") or {}).get(field)
        failure = await hooks.run(self._context, self, hook) if hook else ""
        if failure:
            self._recorder.hook_failed(kind, failure)
        return not failure

    def _within_memory(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which it is killed if it exceeds its memory limit."""
        limit = self.plan.get("memory_limit")
        if not limit:
            return contextlib.nullcontext()
        own = self._context.box.own_tmpfs(self.plan)
        return self._context.memory.watching(
            memory.Watched(self._run.process_id, limit, self._exceed_memory, tmpfs=own)
        )

    def _exceed_memory(self) -> None:
        self._is_over_memory = True
        self.signal(9)

    def set_started(self) -> None:
        """Record that the startup probe has passed, or that there is none."""
        self._recorder.started()
        self._progress.has_started.set()

    def set_ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a setter
        """Record the result of the readiness probe."""
        if self.is_running:
            self._recorder.ready(is_ready)

    @property
    def may_restart(self) -> bool:
        """Whether it would be restarted after being killed."""
        policy = self.plan["restart_policy"] or self._context.plan["restart_policy"]
        return restarts.should_restart(policy, exit_code=_KILLED, is_init=self.plan["kind"] == "init")

    # -- its stop -----------------------------------------------------------------------------------------------

    async def restart(self, why: str, *, grace_seconds: float | None = None) -> None:
        """Kill the process with grace; its restart policy decides what follows."""
        self._recorder.event("Normal", "Killing", why)
        grace = self._context.plan["grace_seconds"] if grace_seconds is None else grace_seconds
        await self.terminate(deadline.Deadline(grace), turn=None)

    async def terminate(self, limit: deadline.Deadline, *, turn: asyncio.Event | None) -> None:
        """End the process: preStop hook, its turn, stop signal, and SIGKILL at the limit."""
        has_hook = bool((self.plan.get("lifecycle") or {}).get("preStop"))
        if has_hook and limit.left_seconds > 0:
            await limit.allows(self._run_hook("PreStop", "preStop"))
        if turn is not None:
            await limit.allows(turn.wait())
        self.signal(signal_number(self.plan["stop_signal"]))
        least = LEAST_SECONDS if has_hook or turn else 0.0
        if not await limit.allows(self._is_down.wait(), least_seconds=least):
            self._was_killed = True
            self.signal(9)
            await self._is_down.wait()

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is alive."""
        if self.is_running and self._context.reaper.is_running(self._run.process_id):
            os.kill(self._run.process_id, number)


def signal_number(name: str) -> int:
    """Return the number of a stop signal: ``SIGTERM``, ``TERM``, ``15``, ``SIGRTMIN+3``; SIGTERM if it is invalid."""
    found = _SIGNAL.fullmatch(name.strip().upper())
    if not found:
        return signal.SIGTERM
    word, offset = found[1], int(found[2] or 0)
    base = int(word) if word.isdecimal() else int(getattr(signal, f"SIG{word}", 0))
    is_known = bool(base) and (not offset or word in ("RTMIN", "RTMAX"))
    return base + offset if is_known and base + offset in signal.valid_signals() else signal.SIGTERM
