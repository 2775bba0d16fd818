"""``hpk status``: the control plane's job, the node, the pods' jobs."""

from __future__ import annotations

import collections
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpk.cli import cluster, instance, slurmaccess
from hpk.controlplane import ending, ownership

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import config
    from hpk.slurm import model

NOT_RUNNING = 3


async def run(settings: config.Settings) -> int:
    """Print the state; return 0 if the node is Ready, 3 if no control plane runs, else 1."""
    with slurmaccess.slurm(settings) as slurm:
        jobs = await slurm.jobs()
        job = instance.expected(jobs, settings)
        for line in _slurm_lines(job, instance.pods(jobs, settings.directory)):
            print(line)
        last = _last_end(jobs, settings)
        if job is None or job.state.is_queued:
            if last:
                print(last)
            return NOT_RUNNING
        look = await cluster.look(settings, slurm, has_pods=True)
        if look.problem and last:
            print(last)
    for line in _cluster_lines(look, settings):
        print(line)
    return 0 if look.is_ready else 1


def _slurm_lines(job: model.Job | None, pods: list[model.Job]) -> list[str]:
    if job is None:
        lines = ["Control plane  not running (hpk up starts it)"]
    elif job.state.is_queued:
        reason = f": {job.reason}" if job.reason else ""
        lines = [f"Control plane  job {job.id}, {job.state.value}{reason}"]
    else:
        left = f", time limit in {_span(job.end_time - time.time())}" if job.end_time else ""
        since = f", for {_span(time.time() - job.start_time)}" if job.start_time else ""
        lines = [f"Control plane  job {job.id}, {job.state.value} on {job.nodes}{since}{left}"]
    counts: Mapping[str, int] = collections.Counter(pod.state.value for pod in pods)
    told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"
    return [*lines, f"Pods' jobs     {told}"]


def _cluster_lines(look: cluster.Look, settings: config.Settings) -> list[str]:
    name = settings.node_name
    if look.problem and not Path(settings.directory.kubeconfig).exists():
        return ["API server     not running yet: the control plane is starting"]
    if look.problem:
        return [f"API server     does not answer: {look.problem}"]
    capacity = ", ".join(
        f"{key} {value}" for key, value in (look.capacity or {}).items() if not key.startswith("hugepages")
    )
    phases = ", ".join(f"{count} {phase}" for phase, count in sorted((look.phases or {}).items())) or "none"
    state = "Ready" if look.is_ready else f"not Ready: {look.message}"
    if look.is_cordoned:
        state += ", SchedulingDisabled: new pods wait for 'kubectl uncordon'"
    trouble = [f"Trouble        {look.trouble}"] if look.trouble else []
    return [
        f"API server     {look.tunnel or look.url}",
        f"Node {name:<10}{state} ({capacity})",
        f"Pods           {phases}",
        *trouble,
    ]


def _last_end(jobs: Mapping[str, model.Job], settings: config.Settings) -> str:
    """Return why the last control plane ended, by its own record or hpk.sbatch's, else Slurm's; empty if unknown."""
    directory = Path(settings.directory.control_plane)
    told = ending.told(directory)
    owner = ownership.read(directory)
    if not told and owner is not None and (job := jobs.get(owner.job_id)) and job.state.is_over:
        log = settings.state / f"hpk-{job.id}.log"
        told = f"job {job.id} ended as {job.state.value} ({job.reason or 'no reason given'}); see {log}"
    return f"Last end       {told}" if told else ""


def _span(seconds: float) -> str:
    minutes = max(0, int(seconds)) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
