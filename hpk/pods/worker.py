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
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk import jobdir
from hpk.kube import v1
from hpk.pods import edits, ephemeral, events, gate, lastwords, launch, model, status

if TYPE_CHECKING:
    from datetime import datetime

    from hpk import records
    from hpk.pods import services

LOG = structlog.get_logger(__name__)

LINK_SILENCE_SECONDS = 60.0
"""How long an agent may be off the line, with a job that Slurm no longer knows, before its pod is lost."""
LAST_WORD_SECONDS = 3.0
"""How long after its job ended the agent's last report may still come."""
SLURM_WORD_SECONDS = 15.0
"""How long to wait for Slurm to say why it ended a job, once the agent has been signalled."""
COMPLETING_SECONDS = 300.0
"""The same for a job that Slurm says is ending: it speaks when the site's epilog is done, which may take minutes."""
END_MARGIN_SECONDS = 10.0
"""What an agent may take beyond the grace before its job is cancelled."""
UNHEARD_SECONDS = 60.0
"""The same where the agent is off the line: it may take half a minute to notice that, and the wish that is left for it
in the pod's directory passes through the caches of a shared file system."""
OFF_LINE_LOOK_SECONDS = 3.0
"""How often the report of an agent off the line that should be ending is read, or one that takes nothing asked."""
YOUNG_SECONDS = 10.0
"""How long an agent that has told of itself may take to dial before it is missed."""
FORCED_GRACE_SECONDS = 1.0
END_LOOK_SECONDS = 5.0
"""After a pod's end its job should be over, too; jobs that end together are asked for together."""
LOOK_AGAIN_SECONDS = 15.0
SOON_SECONDS = 1.0
EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class Worker:
    """One pod, by UID.  Rounds never overlap (see `queue.Queue`), so nothing here is locked."""

    def __init__(self, uid: str, used: services.Services) -> None:
        self.uid, self._s = uid, used
        self._directory = used.state.pod(uid)
        self._log = LOG.bind(uid=uid)
        self._pod: v1.Pod | None = None
        self._started_at: datetime | None = None
        self._launch = launch.Launch(uid, used)
        self._ephemeral = ephemeral.Ephemeral(uid, used)
        self._edits = edits.Edits(uid, used)
        self._allocation: model.Allocation | None = None
        self._told_events = 0
        self._told_queue = ""
        self._has_started = False
        self._was_alive = False  # whether this worker has seen the pod's job hold a place, queued or running
        self._ended_at: float | None = None
        self._finished_seen_at: float | None = None
        self._inquiry = lastwords.Inquiry(used.allocator, self._directory, used.clock)
        self._off_line_since = self._s.clock.monotonic()
        self._asked: float | None = None  # the grace that the agent was last asked for
        self._wished: float | None = None  # the grace of the last wish that was left for an agent off the line
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
        self._started_at = self._started_at or pod.status.start_time or self._s.clock.now()
        again = await self._advance(pod, self._started_at)
        facts = await self._observe()
        self._tell(pod, facts)
        phase = await self._s.reporter.report(raw, pod, facts, now=self._s.clock.now())
        if phase in status.TERMINAL:
            self._count(pod, facts, phase)
            self._tell_end(pod, facts, phase)
            return await self._settle(raw, pod)
        return _sooner(again, self._patience(pod))

    # Forward

    async def _advance(self, pod: v1.Pod, started_at: datetime) -> float | None:
        """Do the next thing that brings the pod forward; the seconds until it should be tried again."""
        await self._adopt()
        self._fail_past_deadline(pod)
        if self._allocation is not None or self._launch.failure is not None:
            if why := self._why_end(pod):
                return await self._stop(_grace(pod), why)
            return self._change(pod)
        if pod.metadata.deletion_timestamp is not None:
            return None
        again = await self._launch.attempt(pod, started_at=started_at)
        self._follow()
        self._fail_past_deadline(pod)
        return None if self._launch.failure else again

    def _change(self, pod: v1.Pod) -> float | None:
        """Have the pod's agent do what was changed since the pod was started."""
        self._edits.images = self._launch.images
        return _sooner(self._ephemeral.advance(pod), self._edits.advance(pod), self._launch.tokens.advance(pod))

    async def _adopt(self) -> None:
        """Look once for a job that is there already."""
        if self._allocation is None and not self._launch.has_looked:
            await self._launch.adopt()
            self._follow()

    def _follow(self) -> None:
        """Have the pod's job watched from now on, once there is one."""
        if self._launch.allocation is None or self._launch.allocation == self._allocation:
            return
        self._allocation = self._launch.allocation
        self._has_started = self._has_started or self._launch.is_adopted  # for all we know
        self._off_line_since = self._s.clock.monotonic()
        self._s.allocator.watch(self.uid, self._allocation)

    def _count(self, pod: v1.Pod, facts: status.Facts, phase: str) -> None:
        """A pod that should run for ever and failed at once makes its controller's next ones wait."""
        is_over = facts.allocation is not None and facts.allocation.cause in {None, *model.OWN_FAULT}
        life = self._s.clock.time() - facts.report["started_at"] if facts.report else 0.0
        if (
            phase == "Failed"
            and is_over
            and pod.spec.restart_policy == "Always"
            and pod.metadata.deletion_timestamp is None
            and life < gate.AT_ONCE_SECONDS
        ):
            self._s.gate.failed_at_once(self._launch.lanes, f"pod {pod.where} failed at once; see kubectl describe")

    # The end

    def _is_past_deadline(self, pod: v1.Pod) -> bool:
        """Whether activeDeadlineSeconds, which may have been set or shortened since the pod started, are over."""
        return self._started_at is not None and launch.time_left(pod, self._started_at, now=self._s.clock.time()) == 0

    def _fail_past_deadline(self, pod: v1.Pod) -> None:
        """Fail a pod that did not start in time; one that has is its agent's to end."""
        is_queued = self._allocation is None or self._state(self._allocation).phase is model.Phase.QUEUED
        if is_queued and self._is_past_deadline(pod) and self._s.agents.newest(self.uid) is None:
            self._launch.failure = self._launch.failure or (EXCEEDED, DEADLINE_MESSAGE)

    def _why_end(self, pod: v1.Pod) -> str:
        """The reason (of `records.Ended`) for which the pod must end now; empty if it need not, or has."""
        if self._allocation is None or self._is_over():
            return ""
        if self._outlives_its_job():
            return "Signalled"
        if pod.metadata.deletion_timestamp is not None:
            return "Deleted"
        return EXCEEDED if self._is_past_deadline(pod) and not self._is_finished() else ""

    def _outlives_its_job(self) -> bool:
        """Whether the agent is there though Slurm has ended its job, as where a node's slurmd has died.

        One answer of Slurm's that does not name the job is no reason to end what runs.
        """
        has_ended = self._allocation is not None and self._state(self._allocation).phase is model.Phase.ENDED
        return has_ended and self._s.agents.is_connected(self.uid) and not self._is_finished()

    async def _stop(self, grace: float, reason: str) -> float:
        """See that the pod ends within the grace: ask its agent, and cancel the job when the grace is over.

        The agent is asked again only for a shorter grace.  If it is off the line, the wish is left in the pod's
        directory: to cancel the job at once would cut the grace to Slurm's KillWait.
        """
        now = self._s.clock.monotonic()
        is_heard = is_connected = self._s.agents.is_connected(self.uid)
        if not is_connected:
            self._asked = None  # whether it has heard that nobody knows: a connection breaks some time before it ends
            if self._wished is None or grace < self._wished:
                await self._leave_wish(grace, reason)  # first, as Slurm may be away
                await self._release(only_queued=True)
                self._wished = grace
                self._cancel_at = now + (0.0 if grace <= FORCED_GRACE_SECONDS else grace + UNHEARD_SECONDS)
        elif self._asked is None or grace < self._asked:
            is_heard = self._s.agents.terminate(self.uid, grace_seconds=grace, reason=reason)
            self._asked = grace if is_heard else self._asked
            if is_heard or self._cancel_at is None:  # also where it does not take what it is sent
                self._cancel_at = now + grace + END_MARGIN_SECONDS
        if self._cancel_at is not None and now >= self._cancel_at and not self._is_released():
            self._log.warning("Cancelled a job whose pod did not end within its grace")
            if reason == EXCEEDED:
                self._launch.failure = (EXCEEDED, DEADLINE_MESSAGE)
            await self._release()
            self._cancel_at = now + END_MARGIN_SECONDS
        longest = math.inf if is_heard else OFF_LINE_LOOK_SECONDS
        return min(max((self._cancel_at or now) - now, SOON_SECONDS), longest)

    async def _leave_wish(self, grace: float, reason: str) -> None:
        """Leave the wish to end the pod where its agent looks while it is off the line; on a full disk, signal it."""
        wish: records.Wish = {"grace_seconds": grace, "reason": reason, "message": ""}
        try:
            await asyncio.to_thread(jobdir.write_json, self._directory.wish, wish)
        except OSError as error:
            self._log.warning("Cannot leave the wish to end a pod in its directory", error=str(error))
            if self._allocation is not None and not self._is_released():
                await self._s.allocator.ask_to_end(self._allocation)

    async def _release(self, *, only_queued: bool = False) -> None:
        if self._allocation is not None:
            await self._s.allocator.release(self._allocation, only_queued=only_queued)

    async def _settle(self, raw: dict[str, Any], pod: v1.Pod) -> float | None:
        """The status is final: remove a deleted pod's object, and forget the pod once its job has ended."""
        if pod.metadata.deletion_timestamp is not None and self._is_removable(raw):
            await self._s.reporter.remove(pod)
        await self._adopt()
        if raw.get("status", {}).get("phase") not in status.TERMINAL:
            return SOON_SECONDS  # our own write has not come back yet: a worker made anew would not know of it
        if not self._is_released():
            if self._ended_at is None:
                self._ended_at = self._s.clock.monotonic()
            self._s.allocator.hurry(after_seconds=END_LOOK_SECONDS)
            if self._s.clock.monotonic() - self._ended_at > END_MARGIN_SECONDS:
                await self._release()
                self._ended_at = self._s.clock.monotonic()
            return LOOK_AGAIN_SECONDS
        await self._remove_secrets()
        self._forget()
        return None

    async def _remove_secrets(self) -> None:
        """Remove the plan: nothing runs or will run, so that nobody needs its secrets, tokens and keys any more."""
        self._launch.tokens.close()
        try:
            await asyncio.to_thread(_unlink_all, Path(self._directory.plan))
        except OSError as error:
            self._log.warning("Cannot remove a finished pod's plan, which holds its secrets", error=str(error))

    def _is_removable(self, raw: dict[str, Any]) -> bool:
        """Whether asking to remove the object does any good: with finalizers it stays whatever we ask."""
        return not (raw["metadata"].get("finalizers") and raw["metadata"].get("deletionGracePeriodSeconds") == 0)

    def _is_released(self) -> bool:
        """Whether Slurm has let go of the pod's job, or there never was one."""
        if self._allocation is None:
            return True
        state = self._state(self._allocation)
        self._was_alive = self._was_alive or state.phase in {model.Phase.QUEUED, model.Phase.STARTED}
        return state.is_over

    def _state(self, allocation: model.Allocation) -> model.AllocationState:
        """What Slurm says of the job, or, once it is over, what is known of its end."""
        return self._inquiry.words.state if self._inquiry.words else self._s.allocator.observe(allocation)

    async def _vanish(self) -> float | None:
        """The object is gone: end whatever still runs, then remove all that was written for it."""
        await self._adopt()
        newest = self._s.agents.newest(self.uid) or await self._s.agents.read(self.uid)
        is_finished = bool(newest and newest["finished_at"])
        if not self._is_released() and not is_finished:
            return min(await self._stop(FORCED_GRACE_SECONDS, "Deleted"), LINK_SILENCE_SECONDS)
        self._launch.tokens.close()
        await asyncio.to_thread(shutil.rmtree, self._directory.root, ignore_errors=True)
        self._forget()
        self.is_done = True
        return None

    def _forget(self) -> None:
        if self._allocation is not None:
            self._s.allocator.forget(self._allocation)
            if self._was_alive or not self._launch.is_adopted:
                self._s.gate.job_ended()  # else it was over before, and its place was given to another then
        self._ephemeral.close()
        self._edits.close()
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
            self._off_line_since = self._s.clock.monotonic()
        if self._finished_seen_at is None and self._is_finished():
            self._finished_seen_at = self._s.clock.monotonic()
        if is_connected or (state is not None and state.phase is model.Phase.STARTED):
            self._has_started = True
        is_job_over = self._allocation is not None and self._is_released()
        if is_job_over and self._ended_at is None:
            self._ended_at = self._s.clock.monotonic()
        # The agent has gone, or was told to end: why, Slurm may know better.
        is_told = newest and newest["finished_at"] and newest["ended"]
        is_lost = not is_connected and not self._dials_soon(newest)
        if self._allocation and newest and not is_job_over and (is_told or is_lost):
            is_slow = self._since_finished() > SLURM_WORD_SECONDS
            self._s.allocator.hurry(after_seconds=LOOK_AGAIN_SECONDS if is_slow else 0.0)
        return status.Facts(
            started_at=self._started_at or self._s.clock.now(),
            waiting={**self._launch.waiting, **self._ephemeral.waiting},
            report=newest,
            allocation=state,
            job_id=self._allocation.job_id if self._allocation else "",
            failure=self._launch.failure,
            is_over=self._is_over(),
            output=self._inquiry.words.line if self._inquiry.words else "",
            images=self._launch.images,
            is_changing=self._pod is not None and self._edits.is_pending(self._pod),
        )

    async def _look(self) -> None:
        """Read what the stream did not bring: the report's file, and a silent job's last words."""
        if self._allocation is None or self._is_finished():
            return
        if self._inquiry.doubt(self._allocation):
            self._ended_at = None
        if not self._s.agents.is_connected(self.uid) or self._is_released():
            await self._s.agents.read(self.uid)
        await self._follow_the_claimant()
        pod = self._pod
        if pod is None or not self._is_released() or self._is_finished():
            return
        words = await self._inquiry.learn(self._allocation, is_urgent=pod.metadata.deletion_timestamp is not None)
        if words and (told := lastwords.report(pod, words, self._s.agents.newest(self.uid), now=self._s.clock.time())):
            await self._s.agents.took_report(self.uid, told)

    async def _follow_the_claimant(self) -> None:
        """Where a lost answer has led to two jobs, follow the one that runs the pod; the other leaves by itself."""
        mine, newest = self._allocation, self._s.agents.newest(self.uid)
        is_anothers = newest is not None and newest["job_id"] not in {"", mine.job_id if mine else ""}
        if mine is None or not (is_anothers or (self._is_released() and newest is None)):
            return
        claimant = await self._s.allocator.claimant(self.uid)
        if claimant is None or claimant.job_id == mine.job_id:
            return
        self._log.warning("Another job runs the pod, by its claim", claimant=claimant.job_id)
        await self._s.allocator.release(mine, only_queued=True)
        self._s.allocator.forget(mine)
        self._launch.allocation, self._launch.is_adopted = claimant, True
        self._ended_at, self._inquiry = None, lastwords.Inquiry(self._s.allocator, self._directory, self._s.clock)
        self._follow()

    def _is_finished(self) -> bool:
        """Whether the agent has said that nothing of the pod runs any more."""
        newest = self._s.agents.newest(self.uid)
        return bool(newest and newest["finished_at"])

    def _is_over(self) -> bool:
        """Whether nothing of the pod runs or will run, and it is known why."""
        is_deleted = self._pod is not None and self._pod.metadata.deletion_timestamp is not None
        if self._allocation is None:
            return self._launch.failure is not None or (is_deleted and self._launch.has_looked)
        state = self._state(self._allocation)
        newest = self._s.agents.newest(self.uid)
        if newest and newest["finished_at"]:
            ended = newest["ended"]
            is_explained = ended is None or ended["reason"] in status.OWN_ENDS
            longest = COMPLETING_SECONDS if state.is_ending and not is_deleted else SLURM_WORD_SECONDS
            return is_explained or state.is_over or self._since_finished() > longest
        if self._inquiry.words is None:
            return False  # it is not over, or not known how it ended
        if state.phase is model.Phase.ENDED:
            if not self._has_started and newest is None:
                return True  # it was cancelled in the queue: no agent has a last word
            return (
                self._ended_at is not None and self._s.clock.monotonic() - self._ended_at >= self._last_word_seconds()
            )
        silence = self._s.clock.monotonic() - self._off_line_since
        return state.phase is model.Phase.GONE and silence >= LINK_SILENCE_SECONDS

    def _dials_soon(self, newest: records.Report | None) -> bool:
        """Whether the agent has just started: it tells of its first second by files and datagrams."""
        is_young = newest is not None and self._s.clock.time() - newest["started_at"] < YOUNG_SECONDS
        return is_young and not self._is_finished() and not self._s.agents.dials(self.uid)

    def _since_finished(self) -> float:
        """Seconds, by our own watch: the agent's clock need not be ours."""
        return 0.0 if self._finished_seen_at is None else self._s.clock.monotonic() - self._finished_seen_at

    def _last_word_seconds(self) -> float:
        """How long after its job's end the agent may still speak: as long as it takes, where it is on the line."""
        if self._pod is None or not self._s.agents.is_connected(self.uid):
            return LAST_WORD_SECONDS
        return _grace(self._pod) + END_MARGIN_SECONDS

    def _patience(self, pod: v1.Pod) -> float | None:
        """The seconds until something may be due that no change announces."""
        waits: list[float] = []
        if self._allocation is not None:
            state = self._state(self._allocation)
            is_connected = self._s.agents.is_connected(self.uid)
            if self._is_finished() or state.phase is model.Phase.ENDED or (state.is_over and not is_connected):
                waits.append(SOON_SECONDS)
            elif not is_connected or state.is_over:
                waits.append(LOOK_AGAIN_SECONDS)
        if self._started_at is not None and (left := launch.time_left(pod, self._started_at, now=self._s.clock.time())):
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
                    number=event["number"],
                    count=event.get("count", 1),
                )
        state = facts.allocation
        if state and state.phase is model.Phase.QUEUED and state.reason not in {"", "None", self._told_queue}:
            self._told_queue = state.reason
            message = f"Slurm job {facts.job_id} is {state.state}: {state.reason}"
            self._s.recorder.tell(pod, "Normal", "Queued", message)

    def _tell_end(self, pod: v1.Pod, facts: status.Facts, phase: str) -> None:
        """Why the pod failed, where neither it nor its owner is the cause and no event has said so."""
        has_been_told = facts.failure is not None and facts.failure[0] != EXCEEDED  # see Launch.fail
        if phase != "Failed" or has_been_told or pod.metadata.deletion_timestamp is not None:
            return
        reason, message = facts.failure or status.job_failure(facts) or ("", "")
        told = {event["reason"] for event in facts.report["events"]} if facts.report else set()
        if reason and reason not in told:
            kind: events.Kind = "Normal" if reason == EXCEEDED else "Warning"
            self._s.recorder.tell(pod, kind, reason, message, key="end")


def _unlink_all(plan: Path) -> None:
    """Remove a file, and what a kubelet that was killed while it wrote it has left."""
    for path in [plan, *plan.parent.glob(f"{plan.name}.*.tmp")]:
        path.unlink(missing_ok=True)


def _grace(pod: v1.Pod) -> float:
    """The seconds that the pod's containers have to end in."""
    asked = pod.metadata.deletion_grace_period_seconds
    return float(pod.spec.termination_grace_period_seconds if asked is None else asked)


def _sooner(*seconds: float | None) -> float | None:
    return min((s for s in seconds if s is not None), default=None)
