"""A running pod's ephemeral containers (``kubectl debug``): each is prepared, then sent to the pod's agent once.

The agent's report is the record: what it lists has been started, whichever kubelet sent it. A container missing from it
is sent again after a pause, because the link may have lost it; the agent starts none twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from hpk import errors
from hpk.pods import admit, prepare

if TYPE_CHECKING:
    import asyncio

    from hpk import records
    from hpk.kube import v1
    from hpk.pods import services

LOG = structlog.get_logger(__name__)

ANSWER_SECONDS = 10.0
"""How long the agent's report may take to list a container before it is sent again."""
TRY_AGAIN_SECONDS = 5.0
CREATING = "ContainerCreating"


class Ephemeral:
    """The ephemeral containers of one pod. `advance` never waits; slow work runs beside the pod's rounds.

    Attributes:
        waiting: Why each container does not run yet.
    """

    def __init__(self, uid: str, used: services.Services) -> None:
        self.uid, self._s = uid, used
        self.waiting: dict[str, tuple[str, str]] = {}
        self._plans: dict[str, records.ContainerPlan] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, float] = {}
        self._attempts = prepare.Attempts()

    def advance(self, pod: v1.Pod) -> float | None:
        """Advance each container that does not run yet; return the seconds until the next check."""
        newest = self._s.agents.newest(self.uid)
        if newest is None or newest["finished_at"]:
            return None  # nothing runs yet, or everything has ended
        missing = self._missing(pod, newest)
        self._drop_all_but({container.name for container in missing})
        waits = [wait for container in missing if (wait := self._next(pod, container)) is not None]
        return min(waits, default=None)

    def _missing(self, pod: v1.Pod, newest: records.Report) -> list[v1.Container]:
        """Return the containers that must still be sent to the agent."""
        return [c for c in pod.spec.ephemeral_containers if c.name not in newest["containers"]]

    def close(self) -> None:
        """Stop all preparations."""
        self._drop_all_but(set())

    def _drop_all_but(self, names: set[str]) -> None:
        for name in self._tasks.keys() - names:
            self._tasks.pop(name).cancel()
        for remembered in (self.waiting, self._plans, self._due):
            for name in remembered.keys() - names:
                del remembered[name]

    def _next(self, pod: v1.Pod, container: v1.Container) -> float | None:
        name = container.name
        if name in self._tasks:
            return None  # a round follows its end
        if name in self._plans and self._plans[name]["image"] != container.image:
            del self._plans[name]  # changed again before the agent learned of the last change
            self._due.pop(name, None)
        if not self._s.agents.is_connected(self.uid):
            self.waiting[name] = (CREATING, "the pod's agent is not connected now")
            if name in self._plans:
                self._due.pop(name, None)  # sent as soon as the agent is back
            return None
        if (pause := self._due.get(name, 0.0) - self._s.clock.monotonic()) > 0:
            return pause
        if name in self._plans:
            return self._start(pod, name)
        self.waiting.setdefault(name, (CREATING, ""))
        self._tasks[name] = self._s.beside(self.uid, lambda: self._prepare(pod, container))
        return None

    def _start(self, pod: v1.Pod, name: str) -> float:
        try:
            self._s.agents.start_container(self.uid, self._plans[name])
        except errors.AgentUnavailable as error:
            self._wait(pod, name, "CreateContainerError", f"Cannot start the container: {error}")
            return self._again(name, TRY_AGAIN_SECONDS)
        self.waiting[name] = (CREATING, "")
        LOG.info("Told the agent of an ephemeral container", pod=pod.where, uid=self.uid, container=name)
        return self._again(name, ANSWER_SECONDS)

    async def _prepare(self, pod: v1.Pod, container: v1.Container) -> None:
        name = container.name
        self._again(name, TRY_AGAIN_SECONDS)  # also after a bug of ours
        try:
            self._check(container)
            cluster = self._s.cluster()
            plan = await self._s.preparer.prepare_ephemeral(pod, container, cluster=cluster, attempts=self._attempts)
        except prepare.NotReady as error:
            self.waiting |= error.waiting
            self._again(name, error.seconds)
        except errors.PodRefused as error:
            self._wait(pod, name, error.reason, str(error))
        except errors.HpkError as error:
            self._wait(pod, name, "CreateContainerError", str(error))
        else:
            self._plans[name] = plan
            del self._due[name]
        finally:
            self._tasks.pop(name, None)

    def _check(self, container: v1.Container) -> None:
        """Repeat the webhook's check, in case it was unreachable.

        Raises:
            errors.PodRefused: The container asks for something unsupported.
        """
        raw = self._s.find(self.uid)
        why = admit.refused(raw, cluster=self._s.cluster()).get(container.name) if raw else None
        if why:
            raise errors.PodRefused(why)

    def _wait(self, pod: v1.Pod, name: str, reason: str, message: str) -> None:
        if self.waiting.get(name) != (reason, message):
            self._s.recorder.tell(pod, "Warning", "Failed", f"Error: {message}", container=name)
        self.waiting[name] = (reason, message)

    def _again(self, name: str, seconds: float) -> float:
        self._due[name] = self._s.clock.monotonic() + seconds
        return seconds
