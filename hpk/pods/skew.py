"""An agent's report converted to the kubelet's time, because hosts' clocks differ and Kubernetes compares times; pure.

A Job's controller counts its wait after a failure from the container's ``finishedAt``, and kubectl shows ages: a node
two minutes ahead would delay a Job by two minutes and show restarts in the future.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpk import records


def corrected(report: records.Report, *, earliest: float = -math.inf, latest: float = math.inf) -> records.Report:
    """Return the report with all times on our clock, as far as the difference is known.

    The agent knows the difference once it has connected. An earlier report is moved as a whole, no further than needed
    to lie between the submission of its job, `earliest`, and its reading, `latest` (both Unix seconds of our clock).
    """
    ahead = report.get("clock_ahead_seconds", 0.0)
    ahead = min(ahead, report["started_at"] - earliest)
    ahead = max(ahead, _newest(report) - latest)
    if not ahead:
        return report
    finished_at = report["finished_at"]
    return {
        **report,
        "started_at": report["started_at"] - ahead,
        "finished_at": None if finished_at is None else finished_at - ahead,
        "containers": {name: _container(record, ahead) for name, record in report["containers"].items()},
        "events": [{**event, "at": event["at"] - ahead} for event in report["events"]],
    }


def _newest(report: records.Report) -> float:
    moments = [report["started_at"], report["finished_at"], *(event["at"] for event in report["events"])]
    for record in report["containers"].values():
        moments.append(record["started_at"])
        moments += [run["finished_at"] for run in (record["terminated"], record["last_terminated"]) if run]
    return max(moment for moment in moments if moment is not None)


def _container(record: records.ContainerRecord, ahead: float) -> records.ContainerRecord:
    started_at = record["started_at"]
    return {
        **record,
        "started_at": None if started_at is None else started_at - ahead,
        "terminated": _run(record["terminated"], ahead),
        "last_terminated": _run(record["last_terminated"], ahead),
    }


def _run(run: records.Terminated | None, ahead: float) -> records.Terminated | None:
    if run is None:
        return None
    return {**run, "started_at": run["started_at"] - ahead, "finished_at": run["finished_at"] - ahead}
