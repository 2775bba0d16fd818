"""One container's part of the report: its state, its ended runs, and its events, in the kubelet's words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpk.agent.boot import processes
from hpk.agent.life import restarts

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import runs
    from hpk.agent.life import report


class ReportRecorder:
    """Changes a container's record in the pod's report, and has the report sent."""

    def __init__(self, reporter: report.AgentReporter, name: str, *, is_init: bool) -> None:
        self._reporter, self._name, self._is_init = reporter, name, is_init

    @property
    def record(self) -> records.ContainerRecord:
        """The container's part of the report."""
        return self._reporter.report["containers"][self._name]

    def event(self, kind: report.Kind, reason: str, message: str) -> None:
        """Add an event of the container."""
        self._reporter.event(kind, reason, message, container=self._name)

    def faulted(self, why: str) -> None:
        """Report a failed task of the agent, which will be restarted."""
        self.event("Warning", "AgentFault", why)

    def hook_failed(self, kind: str, failure: str) -> None:
        """Report a failed hook; the reason is only in the job's output."""
        self.event("Warning", f"Failed{kind}Hook", f"{kind}Hook failed")
        print(f"container {self._name}: {failure}", flush=True)  # noqa: T201 - the job's output is the log

    def image_changed(self, image: str) -> None:
        """Record the image for its next start."""
        self.record["image"] = image
        self._reporter.changed()

    def waiting(self, reason: str, message: str) -> None:
        """Record why it does not run."""
        last = self._last()
        self.record.update({"state": "waiting", "reason": reason, "message": message})
        self.record.update({"terminated": None, "last_terminated": last})
        self._reporter.changed()

    def backing_off(self, seconds: float, *, pod: str) -> None:
        """Record that it restarts after so many seconds."""
        pause = restarts.duration(seconds)
        self.event("Warning", "BackOff", f"Back-off restarting failed container {self._name} in pod {pod}")
        self.waiting("CrashLoopBackOff", f"back-off {pause} restarting failed container={self._name} pod={pod}")

    def not_restarted(self, ended: records.Terminated) -> None:
        """Record that it was waiting to restart, but stays ended."""
        self.record.update({"state": "terminated", "reason": "", "message": "", "terminated": ended})
        self._reporter.changed()

    def running(self, run: runs.ContainerRun, plan: records.ContainerPlan) -> None:
        """Record that its process is alive."""
        has_startup, has_readiness = bool(plan.get("startup_probe")), bool(plan.get("readiness_probe"))
        self.record.update(
            {
                "state": "running",
                "reason": "",
                "message": "",
                "started_at": run.started_at,
                "last_terminated": self._last(),
                "terminated": None,
                "restart_count": run.number,
                "started": not has_startup and not self._is_init,
                "ready": not has_readiness and not has_startup and not self._is_init,
                "container_id": run.id,
            }
        )
        self.event("Normal", "Created", "Container created")
        self.event("Normal", "Started", "Container started")
        self._reporter.changed()

    def started(self) -> None:
        """Record that its startup probe has passed, or that there is none."""
        self.record["started"] = True
        self._reporter.changed()

    def ready(self, is_ready: bool) -> None:  # noqa: FBT001 - a setter
        """Record whether its readiness probe passes."""
        if self.record["ready"] != is_ready:
            self.record["ready"] = is_ready
            self._reporter.changed()

    def ended(
        self, run: runs.ContainerRun, status: int, *, finished_at: float, message: str, is_over_memory: bool
    ) -> records.Terminated:
        """Record how a run ended, from its process's raw exit status; return the record."""
        code = processes.exit_code(status)
        terminated: records.Terminated = {
            "exit_code": code,
            "signal": status & 0x7F,
            "reason": "OOMKilled" if is_over_memory else "Completed" if code == 0 else "Error",
            "message": message,
            "started_at": run.started_at,
            "finished_at": finished_at,
            "container_id": run.id,
        }
        return self._terminated(terminated, number=run.number)

    def failed(self, why: str, *, number: int) -> records.Terminated:
        """Record that a run could not start, and return the record; exit code 128 is containerd's and the kubelet's."""
        now = time.time()
        terminated: records.Terminated = {
            "exit_code": 128,
            "signal": 0,
            "reason": "StartError",
            "message": why,
            "started_at": now,
            "finished_at": now,
            "container_id": "",
        }
        self.event("Warning", "Failed", f"Error: {why}")
        return self._terminated(terminated, number=number)

    def _terminated(self, terminated: records.Terminated, *, number: int) -> records.Terminated:
        self.record.update(
            {
                "state": "terminated",
                "reason": "",
                "message": "",
                "last_terminated": self._last(),
                "terminated": terminated,
                "restart_count": number,
                "started": False,
                "ready": self._is_init and terminated["exit_code"] == 0,
            }
        )
        self._reporter.changed()
        return terminated

    def _last(self) -> records.Terminated | None:
        """Return how the last run that has ended did so."""
        return self.record["terminated"] or self.record["last_terminated"]
