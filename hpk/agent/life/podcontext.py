"""What every container of the pod uses: its sandbox, the report, the log's writer, the reaper of processes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hpk.agent.boot import runs
from hpk.agent.life import memory

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from hpk.agent.boot import cgroup, sandbox
    from hpk.agent.life import logs, reaping, report


class PodContext:
    """The services of one pod, made when the event loop begins."""

    def __init__(
        self,
        box: sandbox.PodSandbox,
        *,
        reporter: report.AgentReporter,
        reaper: reaping.Reaper,
        writer: logs.Writer,
        job: cgroup.MemoryCgroup | None = None,
    ) -> None:
        self.box = box
        self.plan = box.plan
        self.reporter = reporter
        self.reaper = reaper
        self.writer = writer
        self.memory = memory.Watcher(job=job)
        self.is_stopping = asyncio.Event()
        self.mounting = asyncio.Lock()
        plan = box.plan
        self.pod_name = f"{plan['name']}_{plan['namespace']}({plan['uid']})"
        self._background: set[asyncio.Task[None]] = set()

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that nobody waits for."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def retire(self, run: runs.ContainerRun) -> None:
        """Remove what a run that has ended left behind, in a thread."""
        runs.close_stdin(run)  # not in the thread, because sessions close it too
        try:
            asyncio.get_running_loop().run_in_executor(None, runs.clean, run)
        except RuntimeError as error:  # no thread is left; all is removed at the pod's end
            print(f"Cannot remove {run.root_directory} now: {error}", flush=True)  # noqa: T201 - the job's output
