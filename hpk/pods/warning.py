"""The early warning of a job's time limit, and the signals that reach a pod's containers; pure.

Slurm sends a job one signal before its time limit (sbatch(1), ``--signal``).  We ask for one that nobody else sends,
early enough for the pod's grace.  Where the user's flags ask for a signal of their own, the one warning serves both:
it comes early enough for the earlier of the two, and the agent does the other when its time has come.
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
"""Slurm may send the signal a minute earlier than asked (sbatch(1), --signal)."""


@dataclass(frozen=True, kw_only=True)
class Early:
    """What is asked of Slurm, of the job's script and of the agent.

    Attributes:
        directive: The value of ``--signal``; None to ask for none.
        signals: Those that the script hands on to the agent.
        plan: What the agent does when the warning comes.
    """

    directive: str | None
    signals: list[int]
    plan: records.Warning


def early(pod: v1.Pod, options: Mapping[str, str | None], capacity: slurm_model.Capacity | None = None) -> Early:
    """The early warning of this pod's job.

    Args:
        pod: An admitted pod.
        options: The settings' and the pod's own sbatch options.
        capacity: What Slurm said of its partitions, whose default is the limit of a job that names none.
    """
    wanted = options.get("signal")
    asked = flags.signal_of(wanted) if wanted else None
    lead = _lead(pod, _limit(options, capacity))
    first = min(max(lead or 0, asked.seconds if asked else 0), flags.MOST_SIGNAL_SECONDS)
    signals = [jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL]
    plan: records.Warning = {
        "end_after": None if lead is None else float(max(0, first - lead)),
        "signal": asked.number if asked else None,
        "signal_after": float(first - asked.seconds) if asked else 0.0,
    }
    if asked:
        signals.append(asked.number)
    if lead is None and asked is None:
        return Early(directive=None, signals=signals, plan=plan)
    letters = "RB" if asked and asked.may_overlap else "B"
    return Early(directive=f"{letters}:{jobdir.WARNING_SIGNAL}@{first}", signals=signals, plan=plan)


def _limit(options: Mapping[str, str | None], capacity: slurm_model.Capacity | None) -> int | None:
    """The job's time limit; None where it has none, or none is known.  Of several partitions any may run it."""
    if text := options.get("time"):
        return parse.duration(text)
    if capacity is None:
        return None
    names = flags.partitions(options) or [capacity.default_partition or ""]
    known = [capacity.partitions[name] for name in names if name in capacity.partitions]
    limits = [one.max_seconds if one.default_seconds is None else one.default_seconds for one in known]
    return min((limit for limit in limits if limit is not None), default=None)


def _lead(pod: v1.Pod, time_limit: int | None) -> int | None:
    """How long before the limit the pod's end must begin; None where the limit leaves no room for a warning."""
    lead = pod.spec.termination_grace_period_seconds + MARGIN_SECONDS
    has_room = time_limit is None or time_limit > 2 * (lead + ERROR_SECONDS)
    return lead if has_room else None
