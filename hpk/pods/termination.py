"""A pod's termination (ADR 0013): the agent is asked, by the link or a file; after the grace the job is cancelled."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import structlog

from hpk import jobdir
from hpk.pods import life

if TYPE_CHECKING:
    from hpk import records
    from hpk.pods import services, tenancy

LOG = structlog.get_logger(__name__)

UNHEARD_SECONDS = 60.0
"""What an agent that is not connected may take beyond the grace: it may need half a minute to notice, and the request's
file passes through the caches of a shared file system."""
OFF_LINE_LOOK_SECONDS = 3.0
"""How often a pod that must end is checked while its agent is not connected or accepts no messages."""


class Termination:
    """The termination of one pod, which remembers what its agent was asked for.

    Attributes:
        cancel_at: When the job is cancelled (`Clock.monotonic`); None before the agent was asked.
        has_overrun: Whether the last round found the pod not over at that time.
    """

    def __init__(self, uid: str, used: services.Services, stay: tenancy.Tenancy) -> None:
        self._uid, self._s, self._tenancy = uid, used, stay
        self.cancel_at: float | None = None
        self.has_overrun = False
        self._asked: float | None = None  # the grace in the last message to the agent
        self._left_grace: float | None = None  # the grace in the last request file

    async def advance(self, grace: float, reason: str) -> float:
        """Make the pod end within the grace; return the seconds until the next check.

        The agent is asked again only for a shorter grace. If it is not connected, it is asked by a file in the pod's
        directory: cancelling the job at once would cut the grace to Slurm's KillWait.

        Raises:
            errors.SlurmUnavailable: Slurm does not answer.
        """
        self.has_overrun = False
        if self._s.agents.is_connected(self._uid):
            is_heard = self._ask(grace, reason)
        else:
            is_heard = False
            await self._wish(grace, reason)
        if self.cancel_at is not None and self._now() >= self.cancel_at and not self._tenancy.is_released:
            self.has_overrun = True
            LOG.warning("Cancelled a job whose pod did not end within its grace", uid=self._uid)
            await self._tenancy.release()
            self.cancel_at = self._now() + life.END_MARGIN_SECONDS
        left = (self.cancel_at or self._now()) - self._now()
        return min(max(left, life.SOON_SECONDS), math.inf if is_heard else OFF_LINE_LOOK_SECONDS)

    def _now(self) -> float:
        return self._s.clock.monotonic()

    def _ask(self, grace: float, reason: str) -> bool:
        """Ask the agent by the link; return whether it accepts messages."""
        if self._asked is not None and grace >= self._asked:
            return True
        is_heard = self._s.agents.terminate(self._uid, grace_seconds=grace, reason=reason)
        if is_heard:
            self._asked = grace
        if is_heard or self.cancel_at is None:
            self.cancel_at = self._now() + grace + life.END_MARGIN_SECONDS
        return is_heard

    async def _wish(self, grace: float, reason: str) -> None:
        """Ask an agent that is not connected by a file; cancel a queued job, which has no agent, at once."""
        self._asked = None  # the message may be lost: a connection breaks some time before it is seen to end
        if self._left_grace is not None and grace >= self._left_grace:
            return
        began_at = self._now()
        await self._leave(grace, reason)  # before Slurm is asked, which may not answer
        await self._tenancy.release(only_queued=True)
        self._left_grace = grace
        is_forced = grace <= life.FORCED_GRACE_SECONDS
        self.cancel_at = began_at + (0.0 if is_forced else grace + UNHEARD_SECONDS)

    async def _leave(self, grace: float, reason: str) -> None:
        """Write the request file; if the disk is full, signal the job."""
        request: records.EndRequest = {"grace_seconds": grace, "reason": reason, "message": ""}
        try:
            await asyncio.to_thread(jobdir.write_json, self._s.state.pod(self._uid).end_request, request)
        except OSError as error:
            LOG.warning("Cannot write the file that asks a pod's agent to end it", uid=self._uid, error=str(error))
            await self._tenancy.ask_to_end()
