"""Evidence about a job that ended without its agent's report: Slurm's records and the job's output.

An agent that can neither write nor send its last report prints it, and its exit code says how the pod ended. If the
home is full, Slurm's record of that code is all that remains.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog

from hpk import errors, jobdir, records
from hpk.pods import allocations

if TYPE_CHECKING:
    from hpk.aio import clock as clocks
    from hpk.kube import v1

LOG = structlog.get_logger(__name__)
TAIL_BYTES = 4096
LINE_LENGTH = 300
ASK_AGAIN_SECONDS = 5.0
PATIENCE_SECONDS = 15.0
"""How long Slurm is asked how a job ended; after that the pod's end is reported without its answer."""
OUT_OF_MEMORY = re.compile(r"exceeded (job |step )?memory limit|oom[-_ ]?kill", re.IGNORECASE)
"""slurmstepd's words; without cgroups Slurm calls such a job only FAILED."""
OURS = re.compile(rf"^(stages |{records.END_LINE})")


class LastWords(NamedTuple):
    """The evidence about an allocation that is over.

    Attributes:
        state: Slurm's last state, as far as known.
        line: The last line that its job printed.
        output: The end of its job's output.
    """

    state: allocations.AllocationState
    line: str
    output: str


class Inquiry:
    """An inquiry, made once, into how one pod's job ended; Slurm is asked a few times if necessary.

    Attributes:
        words: The evidence; None until it is known.
    """

    def __init__(self, allocator: allocations.Allocator, directory: jobdir.PodDirectory, clock: clocks.Clock) -> None:
        self.words: LastWords | None = None
        self._allocator, self._directory, self._clock = allocator, directory, clock
        self._patient_until: float | None = None
        self._due_at = -math.inf

    async def learn(self, allocation: allocations.Allocation, *, is_urgent: bool) -> LastWords | None:
        """Return the evidence once, as soon as it is known; wait less for Slurm if it is urgent."""
        now = self._clock.monotonic()
        if self.words is not None or now < self._due_at:
            return None
        self._due_at = now + ASK_AGAIN_SECONDS
        if self._patient_until is None:
            self._patient_until = now + PATIENCE_SECONDS
        state = self._allocator.observe(allocation)
        if state.cause in {None, allocations.Cause.FINISHED}:  # else Slurm has said everything
            try:
                state = await self._allocator.recall(allocation) or state
            except errors.SlurmUnavailable as error:
                LOG.warning("Cannot ask Slurm how a job ended", job=allocation.job_id, error=str(error))
                if now < self._patient_until and not is_urgent:
                    return None  # a reported end cannot be taken back
        output = await asyncio.to_thread(_tail, Path(self._directory.output))
        if state.cause in {None, allocations.Cause.FINISHED} and OUT_OF_MEMORY.search(output):
            state = dataclasses.replace(state, cause=allocations.Cause.OUT_OF_MEMORY)
        self.words = LastWords(state, last_line(output), output)
        return self.words

    def doubt(self, allocation: allocations.Allocation) -> bool:
        """Return whether Slurm lists the job again after an incomplete answer, and forget that it is gone."""
        if self.words is None or self.words.state.phase is not allocations.Phase.GONE:
            return False
        if self._allocator.observe(allocation).phase is allocations.Phase.GONE:
            return False
        self.words, self._patient_until, self._due_at = None, None, -math.inf
        return True


def report(pod: v1.Pod, words: LastWords, newest: records.Report | None, *, now: float) -> records.Report | None:
    """Return the report that the agent could not leave: as printed, else as far as its exit code tells."""
    codes = {code: reason for reason, code in records.UNRECORDED.items()}
    if (reason := codes.get(words.state.exit_code or 0)) is None:
        return None
    return _printed(words.output, pod.metadata.uid) or _made_up(pod, newest, reason, now)


def _printed(output: str, uid: str) -> records.Report | None:
    for line in reversed(output.splitlines()):
        if line.startswith(records.END_LINE):
            try:
                found: records.Report = json.loads(line.removeprefix(records.END_LINE))
            except ValueError:
                return None  # cut off: the disk is full
            return found if found.get("uid") == uid else None
    return None


def _made_up(pod: v1.Pod, newest: records.Report | None, reason: str, now: float) -> records.Report:
    """Return the newest report, ended for this reason; if the pod succeeded, so did containers with no known end."""
    made: records.Report = newest or {
        "version": jobdir.VERSION,
        "uid": pod.metadata.uid,
        "sequence": 0,
        "job_id": "",
        "node": "",
        "host_ip": "",
        "pod_ip": "",
        "started_at": now,
        "finished_at": None,
        "ended": None,
        "containers": {},
        "events": [],
    }
    has_succeeded = reason == "Succeeded"
    is_own = has_succeeded or reason == "Failed"
    known = made["containers"]
    containers = {c.name: known.get(c.name) for c in pod.all_containers}
    return {
        **made,
        "sequence": made["sequence"] + 1,
        "finished_at": now,
        "ended": None if is_own else {"reason": reason, "message": ""},
        "containers": {
            **known,
            **{name: _succeeded(record, now) for name, record in containers.items() if has_succeeded},
        },
    }


def _succeeded(record: records.ContainerRecord | None, now: float) -> records.ContainerRecord:
    if record is not None and record["state"] == "terminated":
        return record
    started_at = (record["started_at"] if record else None) or now
    return {
        "state": "terminated",
        "reason": "",
        "message": "",
        "started_at": started_at,
        "terminated": {
            "exit_code": 0,
            "signal": 0,
            "reason": "Completed",
            "message": "",
            "started_at": started_at,
            "finished_at": now,
            "container_id": record["container_id"] if record else "",
        },
        "last_terminated": record["last_terminated"] if record else None,
        "restart_count": record["restart_count"] if record else 0,
        "started": False,
        "ready": False,
        "container_id": record["container_id"] if record else "",
    }


def last_line(output: str) -> str:
    """Return the last line not printed by the agent, cut to fit a status."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not OURS.match(line)]
    return lines[-1][-LINE_LENGTH:] if lines else ""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
