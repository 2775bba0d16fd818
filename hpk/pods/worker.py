"""One pod, in rounds: observe, decide, act, tell.

A round acts on state, never on the kind of event that caused it, so a round too many does no harm and a restart of the
kubelet is just a first round. What is decided is in `life`, what is known in `observe`.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.kube import v1
from hpk.pods import allocations, edits, ephemeral, gate, launch, life, observe, status, tell, tenancy, termination

if TYPE_CHECKING:
    from hpk.pods import services

LOG = structlog.get_logger(__name__)


class Worker:
    """One pod, by UID.  Rounds never overlap (see `queue.Queue`), so nothing here is locked.

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
        """Do one round; return the seconds until the next, if no change causes one before."""
        raw = self._s.find(self.uid)
        pod = v1.pod(raw) if raw is not None else None
        await self._remove_object(raw, pod)  # first: Slurm may be away
        try:
            await self._look(raw, pod)
        except errors.Retryable:
            await self._act_all_the_same(raw, pod)
            raise
        decision = life.decide(self._observe(raw, pod))
        again = await self._act(raw, pod, decision)
        if raw is not None and pod is not None and decision.state is not life.State.CLOSED:
            phase = await self._report(raw, pod)
            if phase in status.TERMINAL:
                await self._remove_object(raw, pod)
                again = await self._act(raw, pod, life.decide(self._observe(raw, pod)))
        if self.is_done:
            return None
        seen = self._observe(raw, pod)
        if seen.is_closed:
            self._ask_soon(seen)
        return sooner(again, life.look_again(seen))

    def _ask_soon(self, seen: life.Observation) -> None:
        """Have Slurm asked in time for what may be due next."""
        if (seconds := life.question(seen)) is not None:
            self._tenancy.ask_soon(seconds)

    # Observe

    async def _look(self, raw: dict[str, Any] | None, pod: v1.Pod | None) -> None:
        """Look for a job that is there already, once, and for what the stream did not bring."""
        is_closed = self._is_closed(raw)
        if pod is not None and not is_closed:  # first: Slurm may be away
            self._observer.started_at = self._observer.started_at or pod.status.start_time or self._s.clock.now()
        if self._tenancy.allocation is None and not self._tenancy.has_looked:
            await self._launch.adopt(raw)
        if not is_closed:
            await self._observer.look(pod)

    def _is_closed(self, raw: dict[str, Any] | None) -> bool:
        return raw is not None and self._s.reporter.current(raw).get("status", {}).get("phase") in status.TERMINAL

    def _observe(self, raw: dict[str, Any] | None, pod: v1.Pod | None) -> life.Observation:
        """Return what is known now; a pod that did not start in time has failed for good."""
        seen = self._observer.observe(raw, pod, self._launch.failure)
        if self._launch.failure is None and (failure := life.overdue(seen)):
            self._launch.failure = failure
            seen = self._observer.observe(raw, pod, failure)
        return seen

    def _facts(self, pod: v1.Pod, seen: life.Observation) -> status.StatusInputs:
        """Return what the pod's status is made of."""
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

    async def _act(self, raw: dict[str, Any] | None, pod: v1.Pod | None, decision: life.Decision) -> float | None:
        """Do the step that is due; return the seconds until the next look, if no change causes one before."""
        again = None
        match decision.step:
            case life.Step.SUBMIT if raw is not None and pod is not None and self._observer.started_at is not None:
                again = await self._launch.attempt(raw, pod, started_at=self._observer.started_at)
            case life.Step.CHANGE if pod is not None:
                again = self._change(pod)
            case life.Step.TERMINATE:
                again = await self._terminate(decision)
            case life.Step.RELEASE:
                await self._tenancy.release()
                self._observer.released()
            case life.Step.FORGET:
                await self._remove_secrets()
                self._forget()
            case life.Step.DISCARD:
                self._launch.tokens.close()
                # First: without a directory, a use of an image would be that of a pod that is being prepared.
                await self._s.preparer.forget(self.uid)
                await asyncio.to_thread(shutil.rmtree, self._directory.root, ignore_errors=True)
                self._forget()
        return again

    async def _act_all_the_same(self, raw: dict[str, Any] | None, pod: v1.Pod | None) -> None:
        """Have the agent do what is due though Slurm or the file system does not answer: it may be on the line."""
        if self._tenancy.allocation is None:
            return  # of a pod without a job nothing is concluded before it was looked for
        decision = life.decide(self._observe(raw, pod))
        if decision.step in {life.Step.TERMINATE, life.Step.CHANGE}:
            await self._act(raw, pod, decision)

    def _change(self, pod: v1.Pod) -> float | None:
        """Have the pod's agent do what was changed since the pod was started."""
        self._edits.images = self._launch.images
        return sooner(self._ephemeral.advance(pod), self._edits.advance(pod), self._launch.tokens.advance(pod))

    async def _remove_object(self, raw: dict[str, Any] | None, pod: v1.Pod | None) -> None:
        """Tell the API server that nothing of a deleted pod is left, once its status is terminal."""
        # Of a pod that is not closed nothing is concluded before it was looked for.
        if pod is not None and self._is_closed(raw) and life.removes_object(self._observe(raw, pod)):
            await self._s.reporter.remove(pod)

    async def _terminate(self, decision: life.Decision) -> float:
        try:
            return await self._termination.advance(decision.grace_seconds, decision.reason)
        finally:  # also where Slurm does not say that it has cancelled the job: it may have
            if self._termination.has_overrun and decision.reason == life.EXCEEDED.reason:
                self._launch.failure = life.EXCEEDED

    async def _remove_secrets(self) -> None:
        """Remove the plan: nothing runs or will run, so that nobody needs its secrets, tokens and keys any more."""
        self._launch.tokens.close()
        try:
            await asyncio.to_thread(_unlink_all, Path(self._directory.plan))
        except OSError as error:
            LOG.warning("Cannot remove a finished pod's plan, which holds its secrets", uid=self.uid, error=str(error))

    def _forget(self) -> None:
        self._tenancy.forget()
        self._ephemeral.close()
        self._edits.close()
        self._s.agents.forget(self.uid)
        self._s.reporter.forget(self.uid)
        self.is_done = True

    # Tell

    async def _report(self, raw: dict[str, Any], pod: v1.Pod) -> str:
        """Tell events and status as they are now, and return the phase that the API server has."""
        seen = self._observe(raw, pod)
        self._ask_soon(seen)  # first: the API server may be away
        facts = self._facts(pod, seen)
        self._told.tell(pod, facts)
        phase = await self._s.reporter.report(raw, pod, facts, now=self._s.clock.now())
        if phase == "Failed":
            self._told.tell_end(pod, facts)
            self._count(pod, facts)
        return phase

    def _count(self, pod: v1.Pod, facts: status.StatusInputs) -> None:
        """Have a controller's next pods wait where one that should run for ever has failed at once."""
        is_own_fault = facts.allocation is not None and facts.allocation.cause in {None, *allocations.OWN_FAULT}
        lived = self._s.clock.time() - facts.report["started_at"] if facts.report else 0.0
        is_deleted = pod.metadata.deletion_timestamp is not None
        if is_own_fault and pod.spec.restart_policy == "Always" and not is_deleted and lived < gate.AT_ONCE_SECONDS:
            self._s.gate.failed_at_once(self._launch.lanes, f"pod {pod.where} failed at once; see kubectl describe")


def _unlink_all(plan: Path) -> None:
    """Remove a file, and what a kubelet that was killed while it wrote it has left."""
    for path in [plan, *plan.parent.glob(f"{plan.name}.*.tmp")]:
        path.unlink(missing_ok=True)


def sooner(*seconds: float | None) -> float | None:
    """Return the shortest of these; None where none is given."""
    return min((s for s in seconds if s is not None), default=None)
