"""An ephemeral container (``kubectl debug``): a user adds it to a running pod, and it runs once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.life import container, starting

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import runs
    from hpk.agent.life import podcontext


class EphemeralRunner(container.ContainerRunner):
    """A container whose image comes late, and which may share the processes of one that has yet to start."""

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
        """Run once, when everything it needs is there; return whether that succeeded."""
        try:
            begun = await self._begin_late()
            if begun is None:
                return False
            self.adopt(begun)
            return await super().live()
        finally:
            self.progress.is_done.set()

    async def _begin_late(self) -> runs.ContainerRun | Exception | None:
        """Start crun for it; return None if the pod ends first."""
        if failure := await starting.mount(self._context, self.plan):
            return failure
        while self._target is not None and self._target.run is None:
            if self._target.progress.is_done.is_set():
                name = self._target.plan["name"]
                return ValueError(f"Cannot share the processes of container {name}: it has ended")
            await self._wait_for(self._target)
            if self._wants_stop.is_set():
                return None
        if self._wants_stop.is_set():
            return None
        return await self._begin(neighbour=self._target.run if self._target else None)

    async def _wait_for(self, target: container.ContainerRunner) -> None:
        """Wait until the target runs, will not run, or the pod ends; report that it waits."""
        name = target.plan["name"]
        why = f"Cannot share the processes of container {name} yet: it is not running"
        self._recorder.waiting("CreateContainerError", why)
        await aiotasks.first_of(target.progress.is_up, target.progress.is_done, self._wants_stop)
