"""The sequence to the first containers: claim the pod, make its sandbox, start crun, let the processes go."""

from __future__ import annotations

import os
import time

from hpk import jobdir
from hpk.agent.boot import claim, linux, namespaces, processes, runs, sandbox, volumes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records


class Start:
    """The outcome of the sequence."""

    def __init__(self, plan: records.PodPlan, box: sandbox.PodSandbox) -> None:
        self.plan = plan
        self.box = box
        self.begun: dict[str, runs.ContainerRun | Exception] = {}
        self.failure: tuple[str, str] | None = None
        """Event reason and message, if the pod cannot run here."""
        self.stages: list[tuple[str, float]] = []
        """Names and Unix times, for the line about where the time goes."""

    def mark(self, stage: str) -> None:
        """Record that a stage has been reached."""
        self.stages.append((stage, time.time()))


def begin(plan: records.PodPlan, facts: sandbox.JobFacts, places: sandbox.Places) -> Start:
    """Make the sandbox and start crun for the first containers; the result holds their faults.

    Raises:
        claim.Taken: Another job runs the pod.
    """
    box = sandbox.PodSandbox(plan, facts, places=places)
    start = Start(plan, box)
    # Containers must not inherit the job script's umask (077), nor the limits of the user's shell.
    os.umask(0o022)
    linux.raise_limits()
    start.mark("agent")
    if plan["version"] != jobdir.VERSION:
        start.failure = (
            "FailedCreatePodSandBox",
            f"Cannot read a plan of version {plan['version']}: install this hpk.sif again",
        )
        return start
    try:
        claim.take(places.pod.claim, facts.job_id)
        _prepare(start)
    except volumes.MountFailed as error:
        start.failure = "FailedMount", str(error)
    except OSError as error:
        start.failure = "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}"
    else:
        _begin_containers(start)
    box.images.settle()
    return start


def _prepare(start: Start) -> None:
    helper = namespaces.enter(start.plan)
    start.box.prepare()
    start.mark("sandbox")
    start.box.make_volumes()
    start.mark("volumes")
    namespaces.attached(helper)
    start.mark("network")


def _begin_containers(start: Start) -> None:
    box = start.box
    for container in first_containers(start.plan):
        try:
            start.begun[container["name"]] = runs.begin(box, container, 0)
        except (OSError, LookupError, ValueError, TypeError) as error:
            start.begun[container["name"]] = error
    start.mark("crun")
    for name, run in start.begun.items():
        if not isinstance(run, Exception):
            start.begun[name] = _launched(box, run)
    start.mark("process")


def _launched(box: sandbox.PodSandbox, run: runs.ContainerRun) -> runs.ContainerRun | Exception:
    """Wait for crun and let the container's process go; a later reader deals with crun's complaints."""
    run.created = processes.wait(run.starter)
    if run.created == 0:
        try:
            runs.launch(box, run)
        except OSError as error:
            return error
    return run


def first_containers(plan: records.PodPlan) -> list[records.ContainerPlan]:
    """Return the containers to start at once: the first init, or the apps up to a postStart hook."""
    if plan["containers"][0]["kind"] != "app":
        return plan["containers"][:1]
    first: list[records.ContainerPlan] = []
    for one in plan["containers"]:
        first.append(one)
        if (one.get("lifecycle") or {}).get("postStart"):
            break
    return first
