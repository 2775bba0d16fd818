"""From a pod that has no job to one that has: adopt what is there, else admit, prepare, wait its turn, submit once.

Nothing here is final but a refusal: whatever else goes wrong is told on the pod and tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from hpk import aiotasks, errors, jobdir
from hpk.kube import v1
from hpk.pods import admit, fit, gate, life, observe, prepare, submit, tokens

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime

    from hpk import records
    from hpk.pods import lanes, services, tenancy

LOG = structlog.get_logger(__name__)
Made = TypeVar("Made")

SUBMIT_PAUSE_SECONDS = 5.0
LOST_ANSWER_PAUSE_SECONDS = 15.0
"""How long slurmctld may still take up a submission whose sbatch has given up (its MessageTimeout is 10 s)."""
SOON_SECONDS = 1.0


class Unwanted(Exception):
    """The pod was deleted while it waited for its turn, which has thus shown nothing to others."""


class Launch:
    """One pod's way to its job; calls never overlap, so nothing here is locked.

    Attributes:
        images: By container name (image, image id), where resolved.
        waiting: By container, why it does not run yet.
        failure: Of a pod that cannot be had.
        lanes: The pod's, in the gate.
        tokens: What keeps its service-account tokens fresh once it is submitted.
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

    async def adopt(self, raw: dict[str, Any] | None) -> None:
        """Find what an earlier kubelet, or an sbatch whose answer was lost, has left.

        That it has looked is the last thing that becomes true: after any error the next round looks again. `raw` is
        None if the object is gone.

        Raises:
            errors.SlurmUnavailable: Slurm does not say.
            errors.Retryable: The file system does not say.
        """
        if not await asyncio.to_thread(_is_there, self._directory.root):
            if raw is not None and (raw.get("status") or {}).get("phase") == "Running":
                # It ran, and was deleted since: a control plane whose node died may have forgotten that.
                self.fail(v1.pod(raw), "Lost", "The pod has run, and its directory is gone; it is not run again")
        elif (found := await self._tenancy.find()) is not None:
            plan = await self._read_plan()
            await self._s.agents.read(self.uid)
            self.images = {c["name"]: (c["image"], c["image_id"]) for c in plan["containers"]} if plan else {}
            if plan:
                self._s.preparer.keep(plan)
                self.tokens.know(plan)
            self._tenancy.take(found, is_adopted=True)
        self._tenancy.has_looked = True

    async def _read_plan(self) -> records.PodPlan | None:
        """Return the plan that the job was submitted with, or None if it was lost."""
        try:
            plan: records.PodPlan | None = await asyncio.to_thread(jobdir.read_json, self._directory.plan)
        except OSError as error:
            raise errors.Retryable(f"Cannot read the pod's plan {self._directory.plan}: {error.strerror}") from error
        return plan

    async def attempt(self, raw: dict[str, Any], pod: v1.Pod, *, started_at: datetime) -> float | None:
        """Submit the pod's job, or say why not; return the seconds until it should be tried again."""
        if (pause := self._due_at - self._s.clock.monotonic()) > 0:
            return pause  # our own status write woke us: no reason to try again before it is time
        if self._is_answer_lost:
            await self.adopt(raw)  # it was not there at once, and may have come since
            self._is_answer_lost = False
            if self._tenancy.allocation is not None:
                return None
        try:
            await self._go(raw, pod, started_at)
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
                self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Waits, as others cannot be submitted: {held}")
            return held.seconds
        except errors.Retryable as error:
            return self._failed_for_now(pod, error)
        return None

    def fail(self, pod: v1.Pod, reason: str, message: str) -> None:
        """The pod cannot be had."""
        self.failure = life.Failure(reason, message)
        self._s.recorder.tell(pod, "Warning", reason, message)
        LOG.info("Failed a pod", pod=pod.where, uid=self.uid, reason=reason, message=message)

    def _failed_for_now(self, pod: v1.Pod, error: errors.Retryable) -> float:
        self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Cannot submit yet, will try again: {error}")
        LOG.warning("Cannot submit yet", pod=pod.where, uid=self.uid, error=str(error))
        self._is_answer_lost = isinstance(error, errors.SlurmUnavailable) and error.may_have_succeeded
        if self._is_answer_lost:
            return self._try_again_in(LOST_ANSWER_PAUSE_SECONDS)
        is_paced = isinstance(error, errors.SlurmUnavailable)  # by the gate, for all pods together
        self._tenancy.has_looked = True  # there is no job, for sure
        return SOON_SECONDS if is_paced else self._try_again_in(SUBMIT_PAUSE_SECONDS)

    def _try_again_in(self, seconds: float) -> float:
        self._due_at = self._s.clock.monotonic() + seconds
        return seconds

    async def _go(self, raw: dict[str, Any], pod: v1.Pod, started_at: datetime) -> None:
        """Take the pod as far as it gets: admitted, let through, its images pulled, prepared, submitted."""
        cluster = self._s.cluster()
        admitted = admit.admit(raw, cluster=cluster, pod=pod)
        fit.check(admitted, cluster)
        self.lanes = admitted.lanes
        try:
            self._s.gate.check(self.uid, self.lanes)
            # Beside all others, for it may take minutes and holds nothing; what follows is done for few at a time.
            pulling = self._s.preparer.pull(pod, cluster=cluster, attempts=self._attempts)
            pulled = await self._while_wanted(pod, started_at, pulling, "pull images for")
            if pulled is None or not await self._while_wanted(pod, started_at, self._s.preparations.acquire(), "queue"):
                return
            try:
                self._s.gate.check(self.uid, self.lanes)  # another has perhaps met trouble while this one waited
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
        """Return what the work makes; given up, with None, as soon as nobody waits for it any more."""
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
        """Write the pod's directory and call sbatch, in turn, unless the pod was deleted before that."""
        self.images, self.waiting = ready.images, {}
        with contextlib.suppress(Unwanted):  # the round that its deletion causes does the rest
            async with self._s.gate.turn(self.uid, self.lanes), self._s.submissions:
                if not self._is_wanted():
                    raise Unwanted
                self._s.gate.check(self.uid, self.lanes)  # another's sbatch may have met trouble meanwhile
                await asyncio.to_thread(submit.write_work, self._directory, ready.work, ready.script)
                allocation = await self._tenancy.submit(ready.script)
            self.tokens.know(ready.work.plan)
            LOG.info("Submitted", pod=pod.where, uid=self.uid, job=allocation.job_id)
            self._s.recorder.tell(pod, "Normal", "Submitted", f"Submitted Slurm job {allocation.job_id}")

    def _is_wanted(self) -> bool:
        raw = self._s.find(self.uid)
        return raw is not None and not raw["metadata"].get("deletionTimestamp")


def _is_there(path: str) -> bool:
    """Whether it exists; a file system that does not say is no answer."""
    try:
        os.stat(path)  # noqa: PTH116 - a path of jobdir's
    except FileNotFoundError:
        return False
    except OSError as error:
        raise errors.Retryable(f"Cannot look for {path}: {error.strerror}") from error
    return True
