"""The pod's report: changed in the event loop, written to the shared disk by a thread, then sent to the kubelet."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from typing import TYPE_CHECKING, Literal, Protocol

from hpk import aiotasks, jobdir, records

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["Normal", "Warning"]

SAME_CLOCK_SECONDS = 1.0
"""Difference between two measurements of the same clocks that is ignored, so that reported times stay the same."""
MOST_EVENTS = 200
"""Only the newest events are kept, so that a crash loop does not make the report grow."""
LONGEST_MESSAGE = 1024
"""Longest message of an event that is posted (`hpk.pods.events`)."""
REPEAT_SECONDS = 300.0
"""A repeated event is reported this often, and when its count has doubled."""
BURST = 25
REFILL_SECONDS = 300.0
"""A pod may have BURST events of a type reported at once, then one in this time: the kubelet's limit."""


class Publisher(Protocol):
    """Receives each report that is on the disk."""

    def publish(self, sequence: int, data: bytes) -> None:
        """Send this report, and forget older ones."""


class Worth:
    """Decides which events are worth a report of their own; repeated and frequent ones are thinned out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: dict[tuple[str, ...], float] = {}
        self._left: dict[str, tuple[float, float]] = {}

    def is_told(self, said: tuple[str, ...], count: int) -> bool:
        """Return whether to report this event, given as a tuple that begins with its type, at this count."""
        now = self._clock()
        has_doubled = count & (count - 1) == 0
        if not has_doubled and now - self._told_at.get(said, -math.inf) < REPEAT_SECONDS:
            return False
        left, at = self._left.get(said[0], (float(BURST), now))
        left = min(float(BURST), left + (now - at) / REFILL_SECONDS)
        is_told = left >= 1
        self._left[said[0]] = (left - is_told, now)
        if is_told:
            self._told_at.pop(said, None)  # the newest are last
            self._told_at[said] = now
            while len(self._told_at) > MOST_EVENTS:
                del self._told_at[next(iter(self._told_at))]
        return is_told


class AgentReporter:
    """Holds the pod's report, and sends every change; several at once if they come quickly."""

    def __init__(self, report: records.Report, *, path: str) -> None:
        self._report = report
        self._path = path
        self._is_dirty = asyncio.Event()
        self._is_out = asyncio.Event()
        self._stored = -1
        self._uplink: Publisher | None = None
        self._last: tuple[int, bytes] | None = None
        self._worth = Worth()

    @property
    def report(self) -> records.Report:
        """The current report."""
        return self._report

    @property
    def is_stored(self) -> bool:
        """Whether the current report is on the disk."""
        return self._stored == self._report["sequence"]

    def attach(self, uplink: Publisher) -> None:
        """Publish to this one from now on, beginning with the newest report."""
        self._uplink = uplink
        if self._last:
            uplink.publish(*self._last)

    def changed(self) -> None:
        """Have the report written and sent."""
        self._report["sequence"] += 1
        self._is_out.clear()
        self._is_dirty.set()

    def event(self, kind: Kind, reason: str, message: str, *, container: str = "") -> None:
        """Add an event, or raise the count of an equal one; have the report sent if that is worth it.

        The report is a file on a shared disk: a probe that fails for hours must not rewrite it each time. An event that
        is not sent now goes with the next change, so callers that change something else call `changed` themselves.
        """
        events, message = self._report["events"], message[:LONGEST_MESSAGE]
        number = events[-1]["number"] + 1 if events else 1
        said = (kind, reason, message, container)
        before = next(
            (one for one in events if (one["type"], one["reason"], one["message"], one["container"]) == said), None
        )
        count = 1
        if before is not None:
            events.remove(before)
            count += before.get("count", 1)
        events.append(
            {
                "number": number,
                "type": kind,
                "reason": reason,
                "message": message,
                "container": container,
                "at": time.time(),
                "count": count,
            }
        )
        del events[:-MOST_EVENTS]
        if self._worth.is_told(said, count):
            self.changed()

    def set_clock(self, ahead_seconds: float) -> bool:
        """Set how far our clock is ahead of the kubelet's; return whether that changed and is sent."""
        if abs(ahead_seconds - self._report.get("clock_ahead_seconds", 0.0)) < SAME_CLOCK_SECONDS:
            return False
        self._report["clock_ahead_seconds"] = ahead_seconds
        self.changed()
        return True

    def finish(self) -> None:
        """Record that nothing of the pod runs any more."""
        self._report["finished_at"] = time.time()
        self.changed()

    async def run(self) -> None:
        """Write and send forever; after an error try again with the next change, or after a second."""
        while True:
            await self._is_dirty.wait()
            self._is_dirty.clear()
            sequence = self._report["sequence"]
            data = _as_json(self._report)
            try:
                # The last report must survive the node; others are soon replaced.
                is_last = self._report["finished_at"] is not None
                await asyncio.to_thread(jobdir.write_bytes, self._path, data, is_durable=is_last)
            except (OSError, RuntimeError) as error:  # RuntimeError: the pod uses all threads
                print(f"Cannot write {self._path}: {error}", flush=True)  # noqa: T201 - the job's output is the log
                asyncio.get_running_loop().call_later(1, self._is_dirty.set)
            else:
                self._stored = sequence
            self._last = (sequence, data)
            if self._uplink:
                self._uplink.publish(sequence, data)
            if sequence == self._report["sequence"]:
                self._is_out.set()

    async def stored(self, *, timeout_seconds: float) -> None:
        """Wait until the newest report is on the disk; give up on one that stays full."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                while not self.is_stored:  # noqa: ASYNC110 - tried again once a second
                    await asyncio.sleep(0.1)

    async def settled(self, *, timeout_seconds: float) -> None:
        """Wait until the newest report is out; give up on a disk that hangs."""
        await aiotasks.in_time(self._is_out.wait(), timeout_seconds)


def exit_code(reporter: AgentReporter, plan: records.PodPlan, *, is_heard: bool) -> int:
    """Return the agent's exit code: 0 if the kubelet or the disk has the last report.

    Otherwise print the report, and return the code that tells how the pod ended.
    """
    if is_heard or reporter.is_stored:
        return 0
    report = reporter.report
    brief = {**report, "events": []}
    print(records.END_LINE + json.dumps(brief, separators=(",", ":")), flush=True)  # noqa: T201 - the last way out
    if report["ended"] is not None:
        return records.UNRECORDED.get(report["ended"]["reason"], records.UNRECORDED["Failed"])
    apps = [report["containers"][one["name"]]["terminated"] for one in plan["containers"] if one["kind"] == "app"]
    return records.UNRECORDED["Succeeded" if all(run and run["exit_code"] == 0 for run in apps) else "Failed"]


def _as_json(report: records.Report) -> bytes:
    """Return the report's text; invalid text in it (a path with a secret's bytes) must not block the rest."""
    return json.dumps(report, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def first_report(plan: records.PodPlan, *, job_id: str, node: str, host_ip: str, pod_ip: str) -> records.Report:
    """Return the report of a pod before anything has started."""
    has_init = any(container["kind"] != "app" for container in plan["containers"])
    reason = "PodInitializing" if has_init else "ContainerCreating"
    return {
        "version": jobdir.VERSION,
        "uid": plan["uid"],
        "sequence": 0,
        "job_id": job_id,
        "node": node,
        "host_ip": host_ip,
        "pod_ip": pod_ip,
        "started_at": time.time(),
        "finished_at": None,
        "ended": None,
        "containers": {container["name"]: waiting(reason) for container in plan["containers"]},
        "events": [],
    }


def waiting(reason: str) -> records.ContainerRecord:
    """Return the record of a container that has never run."""
    return {
        "state": "waiting",
        "reason": reason,
        "message": "",
        "started_at": None,
        "terminated": None,
        "last_terminated": None,
        "restart_count": 0,
        "started": False,
        "ready": False,
        "container_id": "",
    }
