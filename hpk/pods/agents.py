"""The kubelet's view of the agents: their newest reports, and who is on the line.

The stream is the fast way and the file the sure one: a report that the stream lost is still in
``report.json`` on the shared file system, and the higher sequence number is the truth.  Times in it are our clock's.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

import structlog

from hpk import errors, jobdir
from hpk.aio import clock as clocks
from hpk.pods import skew

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records

LOG = structlog.get_logger(__name__)


class Line(Protocol):
    """The kubelet's end of the link, as far as a pod's path uses it."""

    def terminate(self, uid: str, *, grace_seconds: float, reason: str) -> bool:
        """Ask the agent to end its pod, for a reason of `records.Ended`; False if it is not on the line."""

    def start_container(self, uid: str, plan: records.ContainerPlan) -> None:
        """Have the agent start an ephemeral container; errors.AgentUnavailable says why it cannot."""

    def renew(self, uid: str, volumes: list[records.Volume]) -> bool:
        """Have the agent replace the files of these volumes; False if it is not on the line, or too old."""


class Agents:
    """Reports by pod UID.  The link's callbacks are `took_report`, `connected` and `disconnected`; none waits."""

    def __init__(
        self, state: jobdir.State, *, on_change: Callable[[str], None], clock: clocks.Clock = clocks.SYSTEM
    ) -> None:
        self._state, self._on_change, self._clock = state, on_change, clock
        self._reports: dict[str, records.Report] = {}
        self._lines: set[str] = set()
        self._dials: dict[str, int] = {}
        self.line: Line | None = None

    async def took_report(self, uid: str, report: records.Report) -> None:
        """A report came over the stream; an older one than the newest known is dropped, for it says less."""
        if self._keep(uid, report):
            self._on_change(uid)

    async def rung(self, uid: str) -> int:
        """An agent that has not dialled says that there is a report; returns the newest's sequence number, or 0."""
        report = await self.read(uid)
        self._on_change(uid)
        return report["sequence"] if report else 0

    async def connected(self, uid: str) -> None:
        """An agent dialled."""
        self._lines.add(uid)
        self._dials[uid] = self._dials.get(uid, 0) + 1
        self._on_change(uid)

    async def disconnected(self, uid: str) -> None:
        """An agent's stream ended."""
        self._lines.discard(uid)
        self._on_change(uid)

    def is_connected(self, uid: str) -> bool:
        """Whether the pod's agent is on the line."""
        return uid in self._lines

    def dials(self, uid: str) -> int:
        """How often an agent of the pod has dialled; whatever was said to one before may not have been heard."""
        return self._dials.get(uid, 0)

    def newest(self, uid: str) -> records.Report | None:
        """The newest report known."""
        return self._reports.get(uid)

    async def read(self, uid: str) -> records.Report | None:
        """The newest report, after a look at the file."""
        path = self._state.pod(uid).report
        try:
            report: records.Report | None = await asyncio.to_thread(jobdir.read_json, path)
        except OSError as error:
            LOG.warning("Cannot read a report", uid=uid, path=path, error=str(error))
            report = None
        if report is not None and report.get("uid") == uid and self._is_news(uid, report):
            self._keep(uid, report, earliest=await self._submitted_at(uid))
        return self._reports.get(uid)

    def terminate(self, uid: str, *, grace_seconds: float, reason: str) -> bool:
        """Ask the agent to end its pod within the grace; False if it is not on the line."""
        if self.line is None or uid not in self._lines:
            return False
        return self.line.terminate(uid, grace_seconds=grace_seconds, reason=reason)

    def start_container(self, uid: str, plan: records.ContainerPlan) -> None:
        """Have the agent start an ephemeral container, unless it has one of this name.

        Raises:
            errors.AgentUnavailable: It is not on the line, or too old.
        """
        if self.line is None:
            raise errors.AgentUnavailable("the pod's agent is not connected now")
        self.line.start_container(uid, plan)

    def renew(self, uid: str, volumes: list[records.Volume]) -> bool:
        """Have the agent replace the files of these volumes; False if it is not on the line, or too old."""
        return self.line is not None and uid in self._lines and self.line.renew(uid, volumes)

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod that is done with."""
        self._reports.pop(uid, None)
        self._dials.pop(uid, None)

    async def _submitted_at(self, uid: str) -> float:
        """When the pod's job was, in Unix seconds; long ago if that is not known."""
        path = self._state.pod(uid).submission
        submission: records.Submission | None = await asyncio.to_thread(jobdir.peek_json, path)
        at = submission.get("submitted_at") if submission else None
        return at if isinstance(at, int | float) else -math.inf

    def _is_news(self, uid: str, report: records.Report) -> bool:
        known = self._reports.get(uid)
        return known is None or known["sequence"] < report["sequence"]

    def _keep(self, uid: str, report: records.Report, *, earliest: float = -math.inf) -> bool:
        if not self._is_news(uid, report):
            return False
        self._reports[uid] = skew.corrected(report, earliest=earliest, latest=self._clock.time())
        return True
