"""A pod's way to its job: adopt an existing job, else admit the pod, prepare it, wait for its turn, submit it once.

Only a refusal is final. Any other error becomes an event on the pod, and is retried.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from hpk import aiotasks, errors, jobdir
from hpk.pods import admit, fit, gate, life, observe, prepare, submit, tokens

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime

    from hpk import records
    from hpk.kube import v1
    from hpk.pods import lanes, services, tenancy

LOG = structlog.get_logger(__name__)
Made = TypeVar("Made")

SUBMIT_PAUSE_SECONDS = 5.0
LOST_ANSWER_PAUSE_SECONDS = 15.0
"""How long slurmctld may still accept a submission whose sbatch has given up (its MessageTimeout is 10 s)."""


class Unwanted(Exception):
    """The pod was deleted while it waited for its turn; this says nothing about the lane to other pods."""


class Launch:
    """One pod's way to its job. Calls never overlap, so nothing here is locked.

    Attributes:
        images: (image, image id) by container name, where resolved.
        waiting: (reason, message) by container name, of those that do not run yet.
        failure: Why the kubelet failed the pod; None if it has not.
        lanes: The pod's lanes in the gate.
        tokens: The renewal of its service-account tokens, from its submission on.
    """

    def __init__(self, uid: str, used: services.Services, stay: tenancy.Tenancy) -> None:
        self.uid, self._s, self._tenancy = uid, used, stay
        self._directory = used.state.pod(uid)
        self.images: dict[str, tuple[str, str]] = {}
        self.waiting: dict[str, tuple[str, str]] = {}
        self.failure: life.Failure | None = None
        self.lanes: tuple[lanes.Key, ...] = ()
        self._is_answer_lost = False
        self._due_at = 0.0
        self._attempts = prepare.Attempts()
        self._told_hold = ""
        self.tokens = tokens.Tokens(uid, used)

    async def adopt(self, found: observe.PodObject | None) -> None:
        """Follow the job that an earlier kubelet, or an sbatch whose answer was lost, has left, if there is one.

        `has_looked` is set last, so that the next round looks again after any error.

        Raises:
            errors.SlurmUnavailable: Slurm does not say.
            errors.Retryable: The file system does not say.
        """
        if not await asyncio.to_thread(_exists, self._directory.root):
            if found is not None and (found.raw.get("status") or {}).get("phase") == "Running":
                # It ran and was deleted: a control plane whose node died may have lost the deletion.
                self.fail(found.pod, "Lost", "The pod has run, and its directory is gone; it is not run again")
        elif (allocation := await self._tenancy.find()) is not None:
            plan = await self._read_plan()
            await self._s.agents.read(self.uid)
            if plan:
                self.images = _images(plan)
                self._s.preparer.keep(plan)
                self.tokens.know(plan)
            self._tenancy.take(allocation, is_adopted=True)
        self._tenancy.has_looked = True

    async def _read_plan(self) -> records.PodPlan | None:
        """Return the plan that the job was submitted with, or None if it was lost."""
        try:
            plan: records.PodPlan | None = await asyncio.to_thread(jobdir.read_json, self._directory.plan)
        except OSError as error:
            raise errors.Retryable(f"Cannot read the pod's plan {self._directory.plan}: {error.strerror}") from error
        return plan

    async def attempt(self, found: observe.PodObject, *, started_at: datetime) -> float | None:
        """Submit the pod's job, or record why not; return the seconds until the next attempt."""
        if (pause := self._due_at - self._s.clock.monotonic()) > 0:
            return pause  # something else caused this round, such as our own status write
        pod = found.pod
        if self._is_answer_lost:
            await self.adopt(found)  # slurmctld may have accepted the job since
            self._is_answer_lost = False
            if self._tenancy.allocation is not None:
                return None
        try:
            await self._go(found, started_at)
        except errors.PodRefused as error:
            self.fail(pod, error.reason, str(error))
        except errors.JobRefused as error:
            self.fail(pod, "SubmitFailed", f"Cannot submit pod {pod.where}: {error}")
        except prepare.NotReady as error:
            self.waiting = error.waiting
            return self._try_again_in(error.seconds)
        except gate.LaneClosed as held:
            if str(held) != self._told_hold:
                self._told_hold = str(held)
                self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Held because of another pod's error: {held}")
            return held.seconds
        except errors.Retryable as error:
            return self._failed_for_now(pod, error)
        return None

    def fail(self, pod: v1.Pod, reason: str, message: str) -> None:
        """Fail the pod for good."""
        self.failure = life.Failure(reason, message)
        self._s.recorder.tell(pod, "Warning", reason, message)
        LOG.info("Failed a pod", pod=pod.where, uid=self.uid, reason=reason, message=message)

    def _failed_for_now(self, pod: v1.Pod, error: errors.Retryable) -> float:
        self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Cannot submit yet, will try again: {error}")
        LOG.warning("Cannot submit yet", pod=pod.where, uid=self.uid, error=str(error))
        self._is_answer_lost = isinstance(error, errors.SlurmUnavailable) and error.may_have_succeeded
        if self._is_answer_lost:
            return self._try_again_in(LOST_ANSWER_PAUSE_SECONDS)
        self._tenancy.has_looked = True  # there certainly is no job
        if isinstance(error, errors.SlurmUnavailable):
            return life.SOON_SECONDS  # the gate makes the pause, for all pods together
        return self._try_again_in(SUBMIT_PAUSE_SECONDS)

    def _try_again_in(self, seconds: float) -> float:
        self._due_at = self._s.clock.monotonic() + seconds
        return seconds

    async def _go(self, found: observe.PodObject, started_at: datetime) -> None:
        """Admit the pod, pass the gate, pull its images, prepare it, submit it."""
        raw, pod = found
        cluster = self._s.cluster()
        admitted = admit.admit(raw, cluster=cluster, pod=pod)
        fit.check(admitted, cluster)
        self.lanes = admitted.lanes
        try:
            self._s.gate.check(self.uid, self.lanes)
            # All pods pull at the same time, because it may take minutes; few at a time do the rest.
            pulling = self._s.preparer.pull(pod, cluster=cluster, attempts=self._attempts)
            pulled = await self._while_wanted(pod, started_at, pulling, "pull images for")
            if pulled is None or not await self._while_wanted(pod, started_at, self._s.preparations.acquire(), "queue"):
                return
            try:
                self._s.gate.check(self.uid, self.lanes)  # another pod may have met trouble meanwhile
                preparing = self._s.preparer.prepare(admitted, cluster=cluster, started_at=started_at, pulled=pulled)
                ready = await self._while_wanted(pod, started_at, preparing, "prepare")
                if ready is not None:
                    await self._submit(pod, ready)
            finally:
                self._s.preparations.release()
        finally:
            self._s.gate.leave(self.uid, self.lanes)

    async def _while_wanted(
        self, pod: v1.Pod, started_at: datetime, work: Coroutine[Any, Any, Made], what: str
    ) -> Made | None:
        """Return the work's result; cancel it and return None once the pod is deleted or past its deadline."""
        changed, stop = self._s.listen(self.uid)
        working = asyncio.create_task(work, name=f"{what} pod {pod.where}")
        try:
            while (
                self._is_wanted()
                and not working.done()
                and (left := observe.deadline_left(pod, started_at, now=self._s.clock.time())) != 0
            ):
                changed.clear()
                hearing = asyncio.create_task(changed.wait())
                await asyncio.wait({working, hearing}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                hearing.cancel()
            return working.result() if working.done() else None
        finally:
            stop()
            await aiotasks.cancel(working)

    async def _submit(self, pod: v1.Pod, ready: prepare.Ready) -> None:
        """Write the pod's directory and call sbatch when it is the pod's turn, unless it was deleted by then."""
        self.images, self.waiting = _images(ready.plan), {}
        with contextlib.suppress(Unwanted):  # the deletion causes a round, which does the rest
            async with self._s.gate.turn(self.uid, self.lanes), self._s.submissions:
                if not self._is_wanted():
                    raise Unwanted
                self._s.gate.check(self.uid, self.lanes)  # another pod's sbatch may have met trouble meanwhile
                await asyncio.to_thread(submit.write_work, self._directory, ready.plan, ready.script)
                allocation = await self._tenancy.submit(ready.script)
            self.tokens.know(ready.plan)
            LOG.info("Submitted", pod=pod.where, uid=self.uid, job=allocation.job_id)
            self._s.recorder.tell(pod, "Normal", "Submitted", f"Submitted Slurm job {allocation.job_id}")

    def _is_wanted(self) -> bool:
        raw = self._s.find(self.uid)
        return raw is not None and not raw["metadata"].get("deletionTimestamp")


def _images(plan: records.PodPlan) -> dict[str, tuple[str, str]]:
    return {c["name"]: (c["image"], c["image_id"]) for c in plan["containers"]}


def _exists(path: str) -> bool:
    """Return whether the path exists; raise errors.Retryable if the file system does not say."""
    try:
        os.stat(path)  # noqa: PTH116 - a path of jobdir's
    except FileNotFoundError:
        return False
    except OSError as error:
        raise errors.Retryable(f"Cannot look for {path}: {error.strerror}") from error
    return True
