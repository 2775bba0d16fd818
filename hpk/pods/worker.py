"""The life of one pod, as rounds of one function.

``sync`` reads as the path: what is desired, whether it can be honoured, where it runs, what is observed there,
what that means, and who is to be told.  It acts on state, never on the kind of event that woke it, so a round
too many does no harm and a restart of the kubelet is just a first round.

::

    no job yet ──prepare──► job queued ──► job runs, agent reports ──► over: status final ──► object removed
        │                       │                    │                        ▲
        └── refused: Failed     └── cancelled ───────┴── deadline, limit, ────┘
                                                         scancel, node failure
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors, jobdir
from hpk.kube import v1
from hpk.pods import admit, agents, gate, lastwords, model, prepare, report, status, submit

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records
    from hpk.pods import events

LOG = structlog.get_logger(__name__)

LINK_SILENCE_SECONDS = 60.0
"""How long an agent may be off the line, with a job that Slurm no longer knows, before its pod is lost."""
LAST_WORD_SECONDS = 3.0
"""How long after its job ended the agent's last report may still come."""
SLURM_WORD_SECONDS = 15.0
"""How long to wait for Slurm to say why it ended a job, once the agent has been signalled."""
END_MARGIN_SECONDS = 10.0
"""What an agent may take beyond the grace before its job is cancelled."""
DIAL_SECONDS = 10.0
"""How long the agent of a job that has just started may take to dial, before its deleted pod's job is cancelled."""
FORCED_GRACE_SECONDS = 1.0
END_LOOK_SECONDS = 5.0
"""After a pod's end its job should be over, too; jobs that end together are asked for together."""
SUBMIT_PAUSE_SECONDS = 5.0
LOST_ANSWER_PAUSE_SECONDS = 15.0
"""How long slurmctld may still take up a submission whose sbatch has given up (its MessageTimeout is 10 s)."""
LOOK_AGAIN_SECONDS = 15.0
SOON_SECONDS = 1.0
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


@dataclass(frozen=True, kw_only=True)
class Services:
    """What every worker uses."""

    find: Callable[[str], dict[str, Any] | None]
    cluster: Callable[[], admit.Cluster]
    preparer: prepare.Preparer
    allocator: model.Allocator
    agents: agents.Agents
    reporter: report.Reporter
    recorder: events.Recorder
    state: jobdir.State
    submissions: asyncio.Semaphore
    gate: gate.Gate


class Worker:
    """One pod, by UID.  Rounds never overlap (see `queue.Queue`), so nothing here is locked."""

    def __init__(self, uid: str, services: Services) -> None:
        self.uid, self._s = uid, services
        self._directory = services.state.pod(uid)
        self._log = LOG.bind(uid=uid)
        self._pod: v1.Pod | None = None
        self._started_at: datetime | None = None
        self._allocation: model.Allocation | None = None
        self._has_looked = False
        self._is_answer_lost = False
        self._launch_at = 0.0
        self._images: dict[str, tuple[str, str]] = {}
        self._waiting: dict[str, tuple[str, str]] = {}
        self._failure: tuple[str, str] | None = None
        self._lanes: tuple[gate.Key, ...] = ()
        self._attempts = prepare.Attempts()
        self._told_events = 0
        self._told_queue = ""
        self._told_hold = ""
        self._has_started = False
        self._ended_at: float | None = None
        self._last_words: tuple[model.AllocationState, str] | None = None
        self._off_line_since = time.monotonic()
        self._asked: float | None = None  # the grace that the agent was last asked for
        self._cancel_at: float | None = None
        self.is_done = False

    async def sync(self) -> float | None:
        """One round; the seconds until the next, if none is caused by a change before."""
        raw = self._s.find(self.uid)
        if raw is None:
            return await self._vanish()
        pod = self._pod = v1.pod(raw)
        self._log = LOG.bind(uid=self.uid, pod=pod.where, job=self._allocation.job_id if self._allocation else None)
        if self._s.reporter.current(raw).get("status", {}).get("phase") in status.TERMINAL:
            return await self._settle(raw, pod)
        self._started_at = self._started_at or pod.status.start_time or datetime.now(UTC)
        again = await self._advance(pod)
        facts = await self._observe()
        self._tell(pod, facts)
        phase = await self._s.reporter.report(raw, pod, facts, now=datetime.now(UTC))
        if phase in status.TERMINAL:
            self._count(pod, facts, phase)
            return await self._settle(raw, pod)
        return _sooner(again, self._patience(pod))

    # Forward

    async def _advance(self, pod: v1.Pod) -> float | None:
        """Do the next thing that brings the pod forward; the seconds until it should be tried again."""
        if self._allocation is None and not self._has_looked:
            await self._adopt()
        if self._allocation is not None or self._failure is not None:
            return await self._end(pod) if self._must_end(pod) else None
        if pod.metadata.deletion_timestamp is not None or self._is_past_deadline(pod):
            return None
        if (pause := self._launch_at - time.monotonic()) > 0:
            return pause  # our own status write woke us: no reason to try again before it is time
        if self._is_answer_lost:
            await self._adopt()  # it was not there at once, and may have come since
            self._is_answer_lost = False
            if self._allocation is not None:
                return None
        return await self._try_to_launch(pod)

    async def _try_to_launch(self, pod: v1.Pod) -> float | None:
        """Submit the pod's job, or say why not; the seconds until it should be tried again."""
        try:
            return await self._launch(pod)
        except errors.PodRefused as error:
            self._fail(pod, error.reason, str(error))
        except errors.JobRefused as error:
            self._fail(pod, "SubmitFailed", f"Cannot submit pod {pod.where}: {error}")
        except prepare.NotReady as error:
            self._waiting = error.waiting
            return self._try_again_in(error.seconds)
        except gate.Held as held:
            if str(held) != self._told_hold:
                self._told_hold = str(held)
                self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Waits, as others cannot be submitted: {held}")
            return held.seconds
        except errors.Retryable as error:
            self._s.recorder.tell(pod, "Warning", "FailedSubmit", f"Cannot submit yet, will try again: {error}")
            self._log.warning("Cannot submit yet", error=str(error))
            self._is_answer_lost = isinstance(error, errors.SlurmUnavailable) and error.may_have_succeeded
            if self._is_answer_lost:
                return self._try_again_in(LOST_ANSWER_PAUSE_SECONDS)
            is_paced = isinstance(error, errors.SlurmUnavailable)  # by the gate, for all pods together
            self._has_looked = True  # there is no job, for sure
            return SOON_SECONDS if is_paced else self._try_again_in(SUBMIT_PAUSE_SECONDS)
        return None

    def _try_again_in(self, seconds: float) -> float:
        self._launch_at = time.monotonic() + seconds
        return seconds

    async def _adopt(self) -> None:
        """Find what an earlier kubelet, or an sbatch whose answer was lost, has left."""
        if not await asyncio.to_thread(_is_there, self._directory.root):
            self._has_looked = True
            if self._pod is not None and self._pod.status.phase == "Running":
                # It ran, and was deleted since: a control plane whose node died may have forgotten that.
                self._fail(self._pod, "Lost", "The pod has run, and its directory is gone; it is not run again")
            return
        found = await self._s.allocator.find(self.uid)
        self._has_looked = True
        if found is None:
            return
        plan: records.PodPlan | None = await asyncio.to_thread(jobdir.read_json, self._directory.plan)
        if plan is not None:
            self._images = {c["name"]: (c["image"], c["image_id"]) for c in plan["containers"]}
        await self._s.agents.read(self.uid)
        self._has_started = True  # for all we know
        self._follow(found)

    async def _launch(self, pod: v1.Pod) -> float | None:
        raw = self._s.find(self.uid)
        if raw is None or self._started_at is None:
            return None
        cluster = self._s.cluster()
        admit.admit(raw, cluster=cluster)
        self._lanes = gate.keys(pod, cluster.flags)
        self._s.gate.check(self.uid, self._lanes)
        try:
            await self._submit(pod, cluster, self._started_at)
        finally:
            self._s.gate.leave(self.uid, self._lanes)
        return None

    async def _submit(self, pod: v1.Pod, cluster: admit.Cluster, started_at: datetime) -> None:
        # Not among the few that submit at once: a large image takes minutes, and other pods do not wait for it.
        ready = await self._s.preparer.prepare(pod, cluster=cluster, started_at=started_at, attempts=self._attempts)
        self._images, self._waiting = ready.images, {}
        async with self._s.submissions:
            if not self._is_wanted():
                return  # it was deleted meanwhile; the round that this causes does the rest
            await asyncio.to_thread(submit.write_work, self._directory, ready.work, ready.script)
            async with self._s.gate.turn(self.uid, self._lanes):
                self._has_looked = False  # from here on a job may exist: whatever happens, look before submitting
                allocation = await self._s.allocator.allocate(self.uid, script=ready.script)
        self._has_looked = True
        self._follow(allocation)
        self._log.info("Submitted", job=allocation.job_id)
        message = f"Submitted Slurm job {allocation.job_id}"
        self._s.recorder.tell(pod, "Normal", "Submitted", message)

    def _is_wanted(self) -> bool:
        raw = self._s.find(self.uid)
        return raw is not None and not raw["metadata"].get("deletionTimestamp")

    def _follow(self, allocation: model.Allocation) -> None:
        self._allocation = allocation
        self._off_line_since = time.monotonic()
        self._s.allocator.watch(self.uid, allocation)

    def _fail(self, pod: v1.Pod, reason: str, message: str) -> None:
        self._failure = (reason, message)
        self._s.recorder.tell(pod, "Warning", reason, message)
        self._log.info("Failed a pod", reason=reason, message=message)

    def _count(self, pod: v1.Pod, facts: status.Facts, phase: str) -> None:
        """A pod that should run for ever and failed at once makes its controller's next ones wait."""
        is_over = facts.allocation is not None and facts.allocation.cause in {None, *model.OWN_FAULT}
        life = time.time() - facts.report["started_at"] if facts.report else 0.0
        if (
            phase == "Failed"
            and is_over
            and pod.spec.restart_policy == "Always"
            and pod.metadata.deletion_timestamp is None
            and life < gate.AT_ONCE_SECONDS
        ):
            self._s.gate.failed_at_once(self._lanes, f"pod {pod.where} failed at once; see kubectl describe")

    # The end

    def _is_past_deadline(self, pod: v1.Pod) -> bool:
        seconds = pod.spec.active_deadline_seconds
        if seconds is None or self._started_at is None:
            return False
        is_past = datetime.now(UTC).timestamp() >= self._started_at.timestamp() + seconds
        is_queued = self._allocation is None or self._state(self._allocation).phase is model.Phase.QUEUED
        if is_past and self._failure is None and is_queued and self._s.agents.newest(self.uid) is None:
            self._failure = ("DeadlineExceeded", DEADLINE_MESSAGE)  # once the job has started it is the agent's
        return is_past and self._failure is not None

    def _must_end(self, pod: v1.Pod) -> bool:
        if self._allocation is None or self._is_over():
            return False
        return pod.metadata.deletion_timestamp is not None or self._is_past_deadline(pod)

    async def _end(self, pod: v1.Pod) -> float | None:
        """See that nothing of the pod runs on: ask the agent, and if it does not listen, cancel the job."""
        grace = pod.metadata.deletion_grace_period_seconds
        return await self._stop(float(pod.spec.termination_grace_period_seconds if grace is None else grace))

    async def _stop(self, grace: float) -> float:
        """Ask for the end within the grace; cancel when that is over.  Asked again only for a shorter grace."""
        now = time.monotonic()
        if (self._asked is None or grace < self._asked) and self._s.agents.terminate(self.uid, grace_seconds=grace):
            self._asked = grace
            self._cancel_at = now + grace + END_MARGIN_SECONDS
        elif self._cancel_at is None:
            # No agent is on the line: the job waits, or has just started, and its agent will dial in a moment.
            await self._release(only_queued=grace > FORCED_GRACE_SECONDS)
            self._cancel_at = now + DIAL_SECONDS
        elif now >= self._cancel_at and not self._is_released():
            self._log.warning("Cancelled a job whose pod did not end within its grace")
            await self._release()
            self._cancel_at = now + END_MARGIN_SECONDS
        return max(self._cancel_at - now, SOON_SECONDS)

    async def _release(self, *, only_queued: bool = False) -> None:
        if self._allocation is not None:
            await self._s.allocator.release(self._allocation, only_queued=only_queued)

    async def _settle(self, raw: dict[str, Any], pod: v1.Pod) -> float | None:
        """The status is final: remove a deleted pod's object, and forget the pod once its job has ended."""
        if pod.metadata.deletion_timestamp is not None and self._is_removable(raw):
            await self._s.reporter.remove(pod)
        if self._allocation is None and not self._has_looked:
            await self._adopt()
        if raw.get("status", {}).get("phase") not in status.TERMINAL:
            return SOON_SECONDS  # our own write has not come back yet: a worker made anew would not know of it
        if not self._is_released():
            if self._ended_at is None:
                self._ended_at = time.monotonic()
            self._s.allocator.hurry(after_seconds=END_LOOK_SECONDS)
            if time.monotonic() - self._ended_at > END_MARGIN_SECONDS:
                await self._release()
                self._ended_at = time.monotonic()
            return LOOK_AGAIN_SECONDS
        self._forget()
        return None

    def _is_removable(self, raw: dict[str, Any]) -> bool:
        """Whether asking to remove the object does any good: with finalizers it stays whatever we ask."""
        return not (raw["metadata"].get("finalizers") and raw["metadata"].get("deletionGracePeriodSeconds") == 0)

    def _is_released(self) -> bool:
        """Whether Slurm has let go of the pod's job, or there never was one."""
        if self._allocation is None:
            return True
        return self._state(self._allocation).is_over

    def _state(self, allocation: model.Allocation) -> model.AllocationState:
        """What Slurm says of the job, or, once it is over, what is known of its end."""
        return self._last_words[0] if self._last_words else self._s.allocator.observe(allocation)

    async def _vanish(self) -> float | None:
        """The object is gone: end whatever still runs, then remove all that was written for it."""
        if self._allocation is None and not self._has_looked:
            await self._adopt()
        newest = self._s.agents.newest(self.uid) or await self._s.agents.read(self.uid)
        is_finished = bool(newest and newest["finished_at"])
        if not self._is_released() and not is_finished:
            return min(await self._stop(FORCED_GRACE_SECONDS), LINK_SILENCE_SECONDS)
        await asyncio.to_thread(shutil.rmtree, self._directory.root, ignore_errors=True)
        self._forget()
        self.is_done = True
        return None

    def _forget(self) -> None:
        if self._allocation is not None:
            self._s.allocator.forget(self._allocation)
            self._s.gate.job_ended()
        self._s.agents.forget(self.uid)
        self._s.reporter.forget(self.uid)
        self.is_done = True

    # Observation

    async def _observe(self) -> status.Facts:
        await self._look()
        # From here on nothing waits: report, Slurm's word and what follows from them are of one moment.
        state = self._state(self._allocation) if self._allocation else None
        newest = self._s.agents.newest(self.uid)
        is_connected = self._s.agents.is_connected(self.uid)
        if is_connected:
            self._off_line_since = time.monotonic()
        if is_connected or (state is not None and state.phase is model.Phase.STARTED):
            self._has_started = True
        is_job_over = self._allocation is not None and self._is_released()
        if is_job_over and self._ended_at is None:
            self._ended_at = time.monotonic()
        if newest and newest["finished_at"] and newest["ended"] and not is_job_over:
            self._s.allocator.hurry()  # the agent was told to end: why, Slurm may know better
        if self._allocation and not is_job_over and not is_connected and newest:
            self._s.allocator.hurry()
        return status.Facts(
            started_at=self._started_at or datetime.now(UTC),
            waiting=self._waiting,
            report=newest,
            allocation=state,
            job_id=self._allocation.job_id if self._allocation else "",
            failure=self._failure,
            is_over=self._is_over(),
            output=self._last_words[1] if self._last_words else "",
            images=self._images,
        )

    async def _look(self) -> None:
        """Read what the stream did not bring: the report's file, and a silent job's last words."""
        if self._allocation is None or self._is_finished():
            return
        if not self._s.agents.is_connected(self.uid) or self._is_released():
            await self._s.agents.read(self.uid)
        while self._is_released() and not self._is_finished() and self._last_words is None:
            self._last_words = await lastwords.gather(self._s.allocator, self._allocation, self._directory)

    def _is_finished(self) -> bool:
        """Whether the agent has said that nothing of the pod runs any more."""
        newest = self._s.agents.newest(self.uid)
        return bool(newest and newest["finished_at"])

    def _is_over(self) -> bool:
        """Whether nothing of the pod runs or will run, and it is known why."""
        if self._allocation is None:
            is_deleted = self._pod is not None and self._pod.metadata.deletion_timestamp is not None
            return self._failure is not None or (is_deleted and self._has_looked)
        state = self._state(self._allocation)
        newest = self._s.agents.newest(self.uid)
        if newest and (finished_at := newest["finished_at"]):
            ended = newest["ended"]
            is_explained = ended is None or ended["reason"] in {"Deleted", "DeadlineExceeded", "SetupFailed"}
            is_job_over = state.is_over
            return is_explained or is_job_over or time.time() - finished_at > SLURM_WORD_SECONDS
        if state.phase is model.Phase.ENDED:
            if not self._has_started and newest is None:
                return True  # it was cancelled in the queue: no agent has a last word
            return self._ended_at is not None and time.monotonic() - self._ended_at >= LAST_WORD_SECONDS
        silence = time.monotonic() - self._off_line_since
        return state.phase is model.Phase.GONE and silence >= LINK_SILENCE_SECONDS

    def _patience(self, pod: v1.Pod) -> float | None:
        """The seconds until something may be due that no change announces."""
        waits: list[float] = []
        if self._allocation is not None:
            state = self._state(self._allocation)
            newest = self._s.agents.newest(self.uid)
            if (newest and newest["finished_at"]) or state.is_over:
                waits.append(SOON_SECONDS)
            elif not self._s.agents.is_connected(self.uid):
                waits.append(LOOK_AGAIN_SECONDS)
        if pod.spec.active_deadline_seconds is not None and self._started_at is not None:
            left = self._started_at.timestamp() + pod.spec.active_deadline_seconds - datetime.now(UTC).timestamp()
            if left > 0:
                waits.append(left)
        return min(waits, default=None)

    # Telling

    def _tell(self, pod: v1.Pod, facts: status.Facts) -> None:
        """Events: what the agent says, and what the queue says when it says something new."""
        for event in facts.report["events"] if facts.report else []:
            if event["number"] > self._told_events:
                self._told_events = event["number"]
                self._s.recorder.tell(
                    pod,
                    event["type"],
                    event["reason"],
                    event["message"],
                    container=event["container"],
                    at=event["at"],
                    key=f"agent {event['number']}",
                )
        state = facts.allocation
        if state and state.phase is model.Phase.QUEUED and state.reason not in {"", "None", self._told_queue}:
            self._told_queue = state.reason
            message = f"Slurm job {facts.job_id} is {state.state}: {state.reason}"
            self._s.recorder.tell(pod, "Normal", "Queued", message)


def _is_there(path: str) -> bool:
    """Whether it exists; a file system that does not say is no answer."""
    try:
        os.stat(path)  # noqa: PTH116 - a path of jobdir's
    except FileNotFoundError:
        return False
    except OSError as error:
        raise errors.Retryable(f"Cannot look for {path}: {error.strerror}") from error
    return True


def _sooner(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
