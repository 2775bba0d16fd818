"""The early warning of a job's time limit, and the signals that reach a pod's containers; pure.

Slurm sends a job one signal before its time limit (sbatch(1), ``--signal``). We ask for one that nobody else sends,
early enough for the pod's grace. If the user's flags ask for a signal too, the one warning serves both: it comes early
enough for the earlier of the two, and the agent handles the other when it is due.

A pod runs for at least half of its time limit, however long its grace. If the limit is only a few minutes, Slurm's
warning is too coarse for that: the agent then waits by its own clock, from the start of the job's script, before it
ends the pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.slurm import flags, parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import records
    from hpk.kube import v1
    from hpk.slurm import model as slurm_model

MARGIN_SECONDS = 15
ERROR_SECONDS = 60
"""Slurm may send the signal a minute early (sbatch(1), --signal)."""
START_SECONDS = 40
"""The earliest warning after a job's start, when its script must have begun to listen. slurmctld looks twice a minute
and sends, once, what would be due before its next look (send_job_warn_signal in job_mgr.c)."""


@dataclass(frozen=True, kw_only=True)
class Early:
    """The parts of an early warning for Slurm, the job's script and the agent.

    Attributes:
        directive: The value of ``--signal``.
        signals: The signals that the script forwards to the agent.
        plan: The agent's reaction to the warning.
    """

    directive: str
    signals: list[int]
    plan: records.Warning


def early(pod: v1.Pod, options: Mapping[str, str | None], capacity: slurm_model.ClusterCapacity | None = None) -> Early:
    """Return the early warning of the pod's job; a job without a limit has its partition's default."""
    wanted = options.get("signal")
    asked = flags.signal_of(wanted) if wanted else None
    limit = _limit(options, capacity)
    lead = _lead(pod, limit)
    first = max(lead, asked.seconds if asked else 0)
    first = min(first, limit - START_SECONDS) if limit else first
    left = min(first, limit - ERROR_SECONDS) if limit else first  # a minute early would precede the job
    plan: records.Warning = {
        "end_after": float(max(0, left - lead)),
        "signal": asked.number if asked else None,
        "signal_after": float(max(0, first - asked.seconds)) if asked else 0.0,
    }
    if limit and lead + ERROR_SECONDS > limit / 2:
        plan["not_before"] = float(limit - lead)
    signals = [jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL, *([asked.number] if asked else [])]
    letters = "RB" if asked and asked.may_overlap else "B"
    return Early(directive=f"{letters}:{jobdir.WARNING_SIGNAL}@{first}", signals=signals, plan=plan)


def shortened(
    pod: v1.Pod, options: Mapping[str, str | None], capacity: slurm_model.ClusterCapacity | None = None
) -> str | None:
    """Return a warning if the pod has less than its grace when its job nears its time limit; else None."""
    grace, limit = pod.spec.termination_grace_period_seconds, _limit(options, capacity)
    lead = _lead(pod, limit)
    if grace <= lead:
        return None
    where = f" ({parse.time_text(limit)})" if limit else ""
    why = "half of it" if limit and lead == limit // 2 else "since Slurm warns no earlier"
    return (
        f"terminationGracePeriodSeconds {grace} is longer than the job's time limit allows: a pod that reaches the "
        f"limit{where} has {lead} s to end, {why}"
    )


def _limit(options: Mapping[str, str | None], capacity: slurm_model.ClusterCapacity | None) -> int | None:
    """Return the shortest time limit that the job may get; None where it has none, or none is known.

    Slurm may lower it as far as ``--time-min`` says, if the job then starts earlier.
    """
    longest = _asked(options.get("time")) if options.get("time") else _of_partitions(options, capacity)
    limits = (longest, _asked(options.get("time-min")))
    return min((limit for limit in limits if limit is not None), default=None)


def _asked(text: str | None) -> int | None:
    seconds = parse.duration(text) if text else None
    return -(-seconds // 60) * 60 if seconds else None  # Slurm counts whole minutes, and takes 0 for no limit


def _of_partitions(options: Mapping[str, str | None], capacity: slurm_model.ClusterCapacity | None) -> int | None:
    """Return the limit of a job that names none; of several partitions any may run it."""
    if capacity is None:
        return None
    known = capacity.candidates(flags.partitions(options)).values()
    limits = [one.max_seconds if one.default_seconds is None else one.default_seconds for one in known if one]
    return min((limit for limit in limits if limit is not None), default=None)


def _lead(pod: v1.Pod, limit: int | None) -> int:
    """Return how long before the limit the pod's end begins, within half of the limit and Slurm's range."""
    lead = min(pod.spec.termination_grace_period_seconds + MARGIN_SECONDS, flags.MOST_SIGNAL_SECONDS)
    return min(lead, limit // 2) if limit else lead
