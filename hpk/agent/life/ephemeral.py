"""A container that a user adds to a running pod, to look at the others (``kubectl debug``): it runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.life import container, starting

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import runs
    from hpk.agent.life import podcontext


class EphemeralRunner(container.ContainerRunner):
    """As another, but its image comes late, and it may share the processes of a container that is not there yet."""

    def __init__(
        self,
        plan: records.ContainerPlan,
        *,
        context: podcontext.PodContext,
        target: container.ContainerRunner | None = None,
    ) -> None:
        """Take a plan without restarts, probes or hooks, and the container whose processes it shares, if any."""
        super().__init__(plan, context=context)
        self._target = target

    async def live(self) -> bool:
        """Run once, when all that it needs is there; whether that succeeded."""
        try:
            begun = await self._begin()
        except BaseException:
            self.progress.is_done.set()
            raise
        if begun is None:
            self.progress.is_done.set()
            return False
        self.adopt(begun)
        return await super().live()

    async def _begin(self) -> runs.ContainerRun | Exception | None:
        """Ask crun for it; None if the pod ends before."""
        try:
            await starting.mount(self._context, self.plan)
        except OSError as error:
            return error
        while self._target is not None and self._target.run is None:
            if self._target.progress.is_done.is_set():
                name = self._target.plan["name"]
                return ValueError(f"Cannot share the processes of container {name}: it has ended")
            await self._wait_for(self._target)
            if self._wants_stop.is_set():
                return None
        if self._wants_stop.is_set():
            return None
        return starting.begin(self._context, self.plan, 0, neighbour=self._target.run if self._target else None)

    async def _wait_for(self, target: container.ContainerRunner) -> None:
        """Wait until it runs, will not run, or the pod ends; and say so."""
        name = target.plan["name"]
        why = f"Cannot share the processes of container {name} yet: it is not running"
        self._recorder.waiting("CreateContainerError", why)
        await aiotasks.first_of(target.progress.is_up, target.progress.is_done, self._wants_stop)
