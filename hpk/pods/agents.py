"""The kubelet's view of the agents: their newest reports and connections.

The stream is fast and the file is reliable: a report that the stream lost is still in ``report.json`` on the shared
file system. The higher sequence number wins. Times in the reports are converted to our clock.
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


class AgentLink(Protocol):
    """The kubelet's end of the link, as the path of a pod uses it."""

    def terminate(self, uid: str, *, grace_seconds: float, reason: str) -> bool:
        """Ask the agent to end its pod for a reason of `records.EndCause`; return False if it is not connected."""

    def start_container(self, uid: str, plan: records.ContainerPlan) -> None:
        """Ask the agent to start an ephemeral container; errors.AgentUnavailable says why it cannot."""

    def renew(self, uid: str, volumes: list[records.Volume]) -> bool:
        """Ask the agent to replace these volumes' files; return False if it is not connected, or too old."""


class Agents:
    """Reports by pod UID. The link calls `took_report`, `connected` and `disconnected`; none of them waits."""

    def __init__(
        self, state: jobdir.StateDirectory, *, on_change: Callable[[str], None], clock: clocks.Clock = clocks.SYSTEM
    ) -> None:
        self._state, self._on_change, self._clock = state, on_change, clock
        self._reports: dict[str, records.Report] = {}
        self._lines: set[str] = set()
        self._dials: dict[str, int] = {}
        self.line: AgentLink | None = None

    async def took_report(self, uid: str, report: records.Report) -> None:
        """Take a report from the stream; drop one that is older than the newest known."""
        if self._keep(uid, report):
            self._on_change(uid)

    async def rung(self, uid: str) -> int:
        """Read the report of an agent that has not dialled; return the newest sequence number, or 0."""
        report = await self.read(uid)
        self._on_change(uid)
        return report["sequence"] if report else 0

    async def connected(self, uid: str) -> None:
        """Note that an agent connected."""
        self._lines.add(uid)
        self._dials[uid] = self._dials.get(uid, 0) + 1
        self._on_change(uid)

    async def disconnected(self, uid: str) -> None:
        """Note that an agent's stream ended."""
        self._lines.discard(uid)
        self._on_change(uid)

    def is_connected(self, uid: str) -> bool:
        """Return whether the pod's agent is connected."""
        return uid in self._lines

    def dials(self, uid: str) -> int:
        """Return how often the pod's agents have dialled; messages on an earlier stream may have been lost."""
        return self._dials.get(uid, 0)

    def newest(self, uid: str) -> records.Report | None:
        """Return the newest known report, without reading the file."""
        return self._reports.get(uid)

    async def read(self, uid: str) -> records.Report | None:
        """Return the newest report, after reading the file."""
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
        """Ask the agent to end its pod within the grace; return False if it is not connected."""
        if self.line is None or uid not in self._lines:
            return False
        return self.line.terminate(uid, grace_seconds=grace_seconds, reason=reason)

    def start_container(self, uid: str, plan: records.ContainerPlan) -> None:
        """Ask the agent to start an ephemeral container, unless it has one of this name.

        Raises:
            errors.AgentUnavailable: It is not connected, or too old.
        """
        if self.line is None:
            raise errors.AgentUnavailable("the pod's agent is not connected now")
        self.line.start_container(uid, plan)

    def renew(self, uid: str, volumes: list[records.Volume]) -> bool:
        """Ask the agent to replace these volumes' files; return False if it is not connected, or too old."""
        return self.line is not None and uid in self._lines and self.line.renew(uid, volumes)

    def forget(self, uid: str) -> None:
        """Forget a pod that is done."""
        self._reports.pop(uid, None)
        self._dials.pop(uid, None)

    async def _submitted_at(self, uid: str) -> float:
        """Return the submission time of the pod's job in Unix seconds; minus infinity if unknown."""
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
