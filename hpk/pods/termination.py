"""A pod's end within its grace (ADR 0013): its agent is asked, by the link or in its directory; then its job goes."""

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
"""What an agent off the line may take beyond the grace: it may take half a minute to notice that, and the wish that is
left for it in the pod's directory passes through the caches of a shared file system."""
OFF_LINE_LOOK_SECONDS = 3.0
"""How often the report of an agent off the line that should be ending is read, or one that takes nothing asked."""


class Termination:
    """Ends one pod; remembers what its agent was asked for.

    Attributes:
        cancel_at: When the job is cancelled (`Clock.monotonic`); None before the agent was asked.
        has_overrun: Whether the pod was not over by then in the last round.
    """

    def __init__(self, uid: str, used: services.Services, stay: tenancy.Tenancy) -> None:
        self._uid, self._s, self._tenancy = uid, used, stay
        self.cancel_at: float | None = None
        self.has_overrun = False
        self._asked: float | None = None  # the grace that the agent was last asked for
        self._wished: float | None = None  # the grace of the last wish that was left for an agent off the line

    async def advance(self, grace: float, reason: str) -> float:
        """See that the pod ends within the grace; return the seconds until the next look.

        The agent is asked again only for a shorter grace.  If it is off the line, the wish is left in the pod's
        directory: to cancel the job at once would cut the grace to Slurm's KillWait.

        Raises:
            errors.SlurmUnavailable: Slurm is away.
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
        """Ask the agent by the link; return whether it takes what it is sent."""
        if self._asked is not None and grace >= self._asked:
            return True
        is_heard = self._s.agents.terminate(self._uid, grace_seconds=grace, reason=reason)
        if is_heard:
            self._asked = grace
        if is_heard or self.cancel_at is None:
            self.cancel_at = self._now() + grace + life.END_MARGIN_SECONDS
        return is_heard

    async def _wish(self, grace: float, reason: str) -> None:
        """Leave the wish where an agent off the line looks; a job without an agent yet is cancelled at once."""
        self._asked = None  # whether it has heard that nobody knows: a connection breaks some time before it ends
        if self._wished is not None and grace >= self._wished:
            return
        began_at = self._now()
        await self._leave(grace, reason)  # first, as Slurm may be away
        await self._tenancy.release(only_queued=True)
        self._wished = grace
        is_forced = grace <= life.FORCED_GRACE_SECONDS
        self.cancel_at = began_at + (0.0 if is_forced else grace + UNHEARD_SECONDS)

    async def _leave(self, grace: float, reason: str) -> None:
        """Write the wish to end the pod into its directory; on a full disk, signal its job."""
        wish: records.Wish = {"grace_seconds": grace, "reason": reason, "message": ""}
        try:
            await asyncio.to_thread(jobdir.write_json, self._s.state.pod(self._uid).wish, wish)
        except OSError as error:
            LOG.warning("Cannot leave the wish to end a pod in its directory", uid=self._uid, error=str(error))
            await self._tenancy.ask_to_end()
