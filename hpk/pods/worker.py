"""The worker of one pod, in rounds: observe, decide, act, tell.

A round acts on the pod's state and not on the event that caused it. So an extra round does no harm, and a restart of
the kubelet is only a first round. `observe` gathers what is known, `life` decides.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors
from hpk.pods import allocations, edits, ephemeral, gate, launch, life, observe, status, tell, tenancy, termination

if TYPE_CHECKING:
    from hpk.kube import v1
    from hpk.pods import services

LOG = structlog.get_logger(__name__)


class Worker:
    """The worker of one pod. Rounds never overlap (see `queue.Queue`), so nothing here is locked.

    Attributes:
        is_done: Whether the pod is forgotten.
    """

    def __init__(self, uid: str, used: services.Services) -> None:
        self.uid, self._s = uid, used
        self._directory = used.state.pod(uid)
        self._tenancy = tenancy.Tenancy(uid, used)
        self._launch = launch.Launch(uid, used, self._tenancy)
        self._observer = observe.Observer(uid, used, self._tenancy)
        self._termination = termination.Termination(uid, used, self._tenancy)
        self._ephemeral = ephemeral.Ephemeral(uid, used)
        self._edits = edits.Edits(uid, used)
        self._told = tell.PodEvents(used.recorder)
        self.is_done = False

    async def sync(self) -> float | None:
        """Do one round; return the seconds until the next if no change causes one earlier."""
        found = self._observer.find()
        await self._remove_object(found)  # before Slurm is asked, which may not answer
        try:
            await self._look(found)
        except errors.Retryable:
            await self._act_all_the_same(found)
            raise
        decision = life.decide(self._observe(found))
        again = await self._act(found, decision)
        if found is not None and decision.state is not life.State.CLOSED:
            phase = await self._report(found)
            if phase in status.TERMINAL:
                await self._remove_object(found)
                again = await self._act(found, life.decide(self._observe(found)))
        if self.is_done:
            return None
        seen = self._observe(found)
        if seen.is_closed:
            self._ask_soon(seen)
        return sooner(again, life.look_again(seen))

    def _ask_soon(self, seen: life.Observation) -> None:
        """Have Slurm asked in time for what may be due next."""
        if (seconds := life.question(seen)) is not None:
            self._tenancy.ask_soon(seconds)

    # Observe

    async def _look(self, found: observe.PodObject | None) -> None:
        """Look for an existing job, once, and for what the stream did not bring."""
        is_closed = self._observer.is_closed(found)
        if found is not None and not is_closed:  # before Slurm is asked, which may not answer
            started_at = self._observer.started_at or found.pod.status.start_time or self._s.clock.now()
            self._observer.started_at = started_at
        if self._tenancy.allocation is None and not self._tenancy.has_looked:
            await self._launch.adopt(found)
        if not is_closed:
            await self._observer.look(found)

    def _observe(self, found: observe.PodObject | None) -> life.Observation:
        """Return what is known now; a pod that did not start in time has failed for good."""
        seen = self._observer.observe(found, self._launch.failure)
        if self._launch.failure is None and (failure := life.overdue(seen)):
            self._launch.failure = failure
            seen = self._observer.observe(found, failure)
        return seen

    def _facts(self, pod: v1.Pod, seen: life.Observation) -> status.StatusInputs:
        """Return the inputs of the pod's status."""
        return status.StatusInputs(
            started_at=self._observer.started_at or self._s.clock.now(),
            waiting={**self._launch.waiting, **self._ephemeral.waiting},
            report=seen.report,
            allocation=seen.allocation,
            job_id=self._tenancy.allocation.job_id if self._tenancy.allocation else "",
            failure=seen.failure,
            is_over=life.is_over(seen),
            output=self._tenancy.words.line if self._tenancy.words else "",
            images=self._launch.images,
            is_changing=self._edits.is_pending(pod),
        )

    # Act

    async def _act(self, found: observe.PodObject | None, decision: life.Decision) -> float | None:
        """Take the action that is due; return the seconds until the next round if no change causes one earlier."""
        again = None
        match decision.action:
            case life.Action.SUBMIT if found is not None and self._observer.started_at is not None:
                again = await self._launch.attempt(found, started_at=self._observer.started_at)
            case life.Action.CHANGE if found is not None:
                again = self._change(found.pod)
            case life.Action.TERMINATE:
                again = await self._terminate(decision)
            case life.Action.RELEASE:
                await self._tenancy.release()
                self._observer.released()
            case life.Action.FORGET:
                await self._remove_secrets()
                self._forget()
            case life.Action.DISCARD:
                self._launch.tokens.close()
                # Before the directory: without one, a use of an image looks like that of a pod that is being prepared.
                await self._s.preparer.forget(self.uid)
                await asyncio.to_thread(shutil.rmtree, self._directory.root, ignore_errors=True)
                self._forget()
        return again

    async def _act_all_the_same(self, found: observe.PodObject | None) -> None:
        """Ask the agent for what is due although Slurm or the file system does not answer."""
        if self._tenancy.allocation is None:
            return  # nothing is concluded about a pod without a job before it was looked for
        decision = life.decide(self._observe(found))
        if decision.action in {life.Action.TERMINATE, life.Action.CHANGE}:
            await self._act(found, decision)

    def _change(self, pod: v1.Pod) -> float | None:
        """Send the pod's agent what was changed since the pod was started."""
        self._edits.images = self._launch.images
        return sooner(self._ephemeral.advance(pod), self._edits.advance(pod), self._launch.tokens.advance(pod))

    async def _remove_object(self, found: observe.PodObject | None) -> None:
        """Remove a deleted pod's object from the API server once its status is terminal."""
        # `_observe` may fail a pod that is not closed, which must not happen before its job was looked for.
        if found is not None and self._observer.is_closed(found) and life.removes_object(self._observe(found)):
            await self._s.reporter.remove(found.pod)

    async def _terminate(self, decision: life.Decision) -> float:
        try:
            return await self._termination.advance(decision.grace_seconds, decision.reason)
        finally:  # even if Slurm does not say that it has cancelled the job: it may have
            if self._termination.has_overrun and decision.reason == life.EXCEEDED.reason:
                self._launch.failure = life.EXCEEDED

    async def _remove_secrets(self) -> None:
        """Remove the plan: nothing runs or will run, so nobody needs its secrets, tokens and keys."""
        self._launch.tokens.close()
        try:
            await asyncio.to_thread(_unlink_all, Path(self._directory.plan))
        except OSError as error:
            LOG.warning("Cannot remove a finished pod's plan, which holds its secrets", uid=self.uid, error=str(error))

    def _forget(self) -> None:
        self._tenancy.forget()
        self._ephemeral.close()
        self._edits.close()
        self._s.gate.forget(self.uid)
        self._s.agents.forget(self.uid)
        self._s.reporter.forget(self.uid)
        self.is_done = True

    # Tell

    async def _report(self, found: observe.PodObject) -> str:
        """Write events and the status as they are now; return the phase that the API server has."""
        raw, pod = found
        seen = self._observe(found)
        self._ask_soon(seen)  # before the status is written: the API server may not answer
        facts = self._facts(pod, seen)
        self._told.tell(pod, facts)
        phase = await self._s.reporter.report(raw, pod, facts, now=self._s.clock.now())
        if phase == "Failed":
            self._told.tell_end(pod, facts)
            self._count(pod, facts)
        return phase

    def _count(self, pod: v1.Pod, facts: status.StatusInputs) -> None:
        """Hold a controller's next pods if this one, which should run forever, has failed at once."""
        is_own_fault = facts.allocation is not None and facts.allocation.cause in allocations.OWN_FAULT
        lived = self._s.clock.time() - facts.report["started_at"] if facts.report else 0.0
        is_deleted = pod.metadata.deletion_timestamp is not None
        if is_own_fault and pod.spec.restart_policy == "Always" and not is_deleted and lived < gate.AT_ONCE_SECONDS:
            self._s.gate.failed_at_once(self._launch.lanes, f"pod {pod.where} failed at once; see kubectl describe")


def _unlink_all(plan: Path) -> None:
    """Remove the plan and the temporary files of a kubelet that was killed while it wrote one."""
    for path in [plan, *plan.parent.glob(f"{plan.name}.*.tmp")]:
        path.unlink(missing_ok=True)


def sooner(*seconds: float | None) -> float | None:
    """Return the shortest of these; None if none is given."""
    return min((s for s in seconds if s is not None), default=None)
