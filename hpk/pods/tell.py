"""The events of one pod: its agent's, Slurm's reason while it is queued, and why it failed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.pods import allocations, life, status

if TYPE_CHECKING:
    from hpk.kube import v1
    from hpk.pods import events


class PodEvents:
    """A recorder of each event of a pod, once."""

    def __init__(self, recorder: events.EventRecorder) -> None:
        self._recorder = recorder
        self._newest = 0
        self._queue = ""

    def tell(self, pod: v1.Pod, facts: status.StatusInputs) -> None:
        """Record new agent events, and a new reason why the job waits."""
        for event in facts.report["events"] if facts.report else []:
            if event["number"] > self._newest:
                self._newest = event["number"]
                self._recorder.tell(
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
        if state and state.phase is allocations.Phase.QUEUED and state.reason not in {"", "None", self._queue}:
            self._queue = state.reason
            message = f"Slurm job {facts.job_id} is {state.state}: {state.reason}"
            self._recorder.tell(pod, "Normal", "Queued", message)

    def tell_end(self, pod: v1.Pod, facts: status.StatusInputs) -> None:
        """Record why the pod failed, unless the pod or its owner caused it or an event has reported it."""
        has_been_told = facts.failure is not None and facts.failure[0] != life.EXCEEDED.reason  # see Launch.fail
        if has_been_told or pod.metadata.deletion_timestamp is not None:
            return
        reason, message = facts.failure or status.job_failure(facts) or ("", "")
        told = {event["reason"] for event in facts.report["events"]} if facts.report else set()
        if reason and reason not in told:
            kind: events.Kind = "Normal" if reason == life.EXCEEDED.reason else "Warning"
            self._recorder.tell(pod, kind, reason, message, key="end")
