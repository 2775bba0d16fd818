"""Refuses a job that Slurm has restarted: Kubernetes may have replaced its pod long ago."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.agent.boot import claim
from hpk.agent.life import report

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.boot import sandbox


def refuse(plan: records.PodPlan, facts: sandbox.JobFacts, places: sandbox.Places) -> int:
    """Report that the pod is over, and its running containers are lost; do nothing if another job has the pod."""
    try:
        claim.take(places.pod.claim, facts.job_id)  # so that no other job runs the pod
    except claim.Taken as taken:
        if taken.job_id not in ("", facts.job_id):
            print(taken, flush=True)  # noqa: T201 - the job's output is the log
            return 0
    now = time.time()
    old: records.Report | None = jobdir.read_json(places.pod.report)
    if old and old["finished_at"] is not None:
        return 0
    new = old or report.first_report(plan, job_id=facts.job_id, node=facts.node, host_ip=facts.host_ip, pod_ip="")
    message = f"Slurm restarted job {facts.job_id}; a pod runs only once"
    new["sequence"] += 1
    new["ended"] = {"reason": "SetupFailed", "message": message}
    new["finished_at"] = now
    for record in new["containers"].values():
        if record["state"] == "running":
            record["state"] = "terminated"
            record["ready"] = record["started"] = False
            record["terminated"] = {
                "exit_code": 137,
                "signal": 0,
                "reason": "ContainerStatusUnknown",
                "message": "The container could not be located when the job was restarted",
                "started_at": record["started_at"] or now,
                "finished_at": now,
                "container_id": record["container_id"],
            }
    jobdir.write_json(places.pod.report, new)
    print(message, flush=True)  # noqa: T201 - the job's output is the log
    return 0
