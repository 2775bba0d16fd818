"""How the kubelet learns of the pod: by datagrams in its first second, by the link from then on.

To dial costs more CPU than many a short pod (see `hpk.link.doorbell`), so a pod that ends at once does not.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from hpk import aiotasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hpk import records
    from hpk.agent.life import report
    from hpk.link import client, doorbell

QUIET_SECONDS = 0.25
"""A pod that ends within them is told of once, ended, and not as running before."""
DIAL_SECONDS = 1.0
"""After that the agent dials; whoever wants to exec meanwhile waits (`link.kubelet_end`)."""
RING_SECONDS = 0.5
"""How long a datagram may take to be answered before the agent of a pod that has ended dials after all."""


class Uplink:
    """Tells the kubelet of the reporter's reports.

    `dial` makes the link, which is the reporter's uplink from then on; `is_patient` says whether the pod's first
    second can do without it.
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
        """Whether the kubelet can tell us by the link."""
        link = self._link
        if link is None or not link.done() or link.cancelled() or link.exception():
            return False
        return link.result().is_connected

    def begin(self) -> None:
        """Begin to tell."""
        self._waiting = asyncio.create_task(self._begin(), name="uplink")

    async def told(self, sequence: int) -> None:
        """Wait until the kubelet has this report; for ever, if need be."""
        if self._link is None:
            self._stop_waiting()
            self._reporter.attach(self._ringer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RING_SECONDS):
                    await self._ringer.acknowledged(sequence)
                    return
        link = await asyncio.shield(self._linked())
        await link.acknowledged(sequence)

    async def idle(self) -> None:
        """Wait until no session is left: clients have the last output."""
        if self._link:
            link = await asyncio.shield(self._link)
            await link.idle()

    async def close(self) -> None:
        """Tell no more."""
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
    """Return false for pods that need the kubelet at once: a client attaches, or the deadline waits for its clock."""
    return plan["deadline_at"] is None and not any(one["tty"] or one["stdin"] for one in plan["containers"])
