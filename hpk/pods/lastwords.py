"""What is left to learn of a job that ended and whose agent said nothing of it: accounting, and the job's output."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from hpk import errors
from hpk.pods import model

if TYPE_CHECKING:
    from hpk import jobdir

LOG = structlog.get_logger(__name__)
TAIL_BYTES = 4096
LINE_LENGTH = 300
OUT_OF_MEMORY = re.compile(r"exceeded (job |step )?memory limit|oom[-_ ]?kill", re.IGNORECASE)
"""slurmstepd's words; without cgroups Slurm itself calls such a job only FAILED."""
OURS = re.compile(r"^stages ")


async def gather(
    allocator: model.Allocator, allocation: model.Allocation, directory: jobdir.PodDirectory
) -> tuple[model.AllocationState, str]:
    """The state of an allocation that is over, as far as anybody knows, and the last line that its job printed."""
    state = allocator.observe(allocation)
    if state.cause in {None, model.Cause.FINISHED}:  # else Slurm has said all that there is
        try:
            state = await allocator.recall(allocation) or state
        except errors.SlurmUnavailable as error:
            LOG.warning("Cannot ask Slurm how a job ended", job=allocation.job_id, error=str(error))
    output = await asyncio.to_thread(_tail, Path(directory.output))
    if state.cause in {None, model.Cause.FINISHED} and OUT_OF_MEMORY.search(output):
        state = dataclasses.replace(state, cause=model.Cause.OUT_OF_MEMORY)
    return state, last_line(output)


def last_line(output: str) -> str:
    """The last line that somebody else than the agent printed, cut to what fits a status."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not OURS.match(line)]
    return lines[-1][-LINE_LENGTH:] if lines else ""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
