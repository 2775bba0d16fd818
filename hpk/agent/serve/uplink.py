"""Reports to the kubelet: by datagrams in the pod's first second, by the link from then on.

Dialling costs more CPU than many a short pod (`hpk.link.doorbell`), so a pod that ends at once does not dial.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hpk import aiotasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpk import records
    from hpk.agent.life import report
    from hpk.link import client, doorbell

QUIET_SECONDS = 0.25
"""A pod that ends within this time is reported once, as ended, and not first as running."""
DIAL_SECONDS = 1.0
"""The agent dials after this time; an exec meanwhile waits (`link.kubelet_end`)."""
RING_SECONDS = 0.5
"""How long the agent of an ended pod waits for the answer to a datagram before it dials."""


class Uplink:
    """Sends the reporter's reports to the kubelet.

    ``dial`` makes the link, which then becomes the reporter's uplink; ``is_patient`` says whether the pod can do
    without it in its first second.
    """

    def __init__(
        self,
        dial: Callable[[], Awaitable[client.LinkClient]],
        *,
        reporter: report.AgentReporter,
        ringer: doorbell.Ringer,
        is_patient: bool,
    ) -> None:
        self._dial, self._reporter, self._ringer, self._is_patient = dial, reporter, ringer, is_patient
        self._link: asyncio.Task[client.LinkClient] | None = None
        self._waiting: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the link is connected."""
        link = self._link
        if link is None or not link.done() or link.cancelled() or link.exception():
            return False
        return link.result().is_connected

    def begin(self) -> None:
        """Start reporting."""
        self._waiting = asyncio.create_task(self._begin(), name="uplink")

    async def told(self, sequence: int) -> None:
        """Wait until the kubelet has this report, forever if need be."""
        if self._link is None:
            self._stop_waiting()
            self._reporter.attach(self._ringer)
            if await aiotasks.in_time(self._ringer.acknowledged(sequence), RING_SECONDS):
                return
        link = await asyncio.shield(self._linked())
        await link.acknowledged(sequence)

    async def idle(self) -> None:
        """Wait until no session is left: clients have the last output."""
        if self._link:
            link = await asyncio.shield(self._link)
            await link.idle()

    async def close(self) -> None:
        """Stop reporting."""
        self._stop_waiting()
        self._ringer.close()
        if self._link:
            await aiotasks.cancel(self._link)

    async def _begin(self) -> None:
        if self._is_patient:
            await asyncio.sleep(QUIET_SECONDS)
            self._reporter.attach(self._ringer)
            await asyncio.sleep(DIAL_SECONDS)
        await asyncio.shield(self._linked())

    def _linked(self) -> asyncio.Task[client.LinkClient]:
        if self._link is None:
            self._link = asyncio.ensure_future(self._dial())
        return self._link

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting.cancel()


def is_patient(plan: records.PodPlan) -> bool:
    """Return false if the pod needs the kubelet at once: for clients, or for its clock because of a deadline."""
    return plan["deadline_at"] is None and not any(one["tty"] or one["stdin"] for one in plan["containers"])
