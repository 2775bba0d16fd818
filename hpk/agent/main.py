"""From the job script to the first container in the fewest steps, and only then the rest of the agent.

Every import above :func:`main` is paid for by each pod's start (see the package's docstring).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os
import sys
import time

from hpk import jobdir, missing
from hpk.agent.boot import claim, linux, namespaces, output, processes, quickjson, runs, sandbox, volumes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records


ENDING_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL)


class Start:
    """What the first milliseconds led to."""

    def __init__(self, plan: records.PodPlan, box: sandbox.Sandbox) -> None:
        self.plan = plan
        self.box = box
        self.begun: dict[str, runs.Run | Exception] = {}
        self.failure: tuple[str, str] | None = None
        """Event reason and message, if there can be no pod here."""
        self.stages: list[tuple[str, float]] = []
        """Names and Unix times, for the table of where the time goes."""

    def mark(self, stage: str) -> None:
        """Note that a stage has been reached."""
        self.stages.append((stage, time.time()))


def main(arguments: list[str]) -> int:
    """Run the pod of this job; the exit code is 0 when its end has been reported."""
    # Until the event loop can act on them: else a SIGTERM of these milliseconds would leave a pod without its end.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, ENDING_SIGNALS)
    places = sandbox.Places()
    try:
        with open(places.pod.plan, encoding="utf-8", errors="surrogateescape") as file:
            plan: records.PodPlan = quickjson.loads(file.read())
    except FileNotFoundError:
        print("The pod is over, and its plan is removed: nothing to do", flush=True)  # noqa: T201 - as below
        return 0
    facts = sandbox.Facts(arguments)
    if facts.restart_count > 0:
        from hpk.agent.life import refuse  # noqa: PLC0415 - rare

        return refuse.refuse(plan, facts, places)
    try:
        start = begin(plan, facts, places)
    except claim.Taken as taken:
        print(taken, flush=True)  # noqa: T201 - the job's output is the log
        return 0
    with missing.Without(*spared(plan)):
        from hpk.agent import rest  # noqa: PLC0415 - asyncio and all that, while the container starts

    return rest.run(start)


def spared(plan: records.PodPlan) -> tuple[str, ...]:
    """Return what asyncio and hashlib do without, unless a probe or a hook speaks HTTP, and may be sent on to HTTPS.

    OpenSSL's bindings and their 8 MB of libraries cost each pod 10 to 15 ms of CPU.
    """
    for one in plan["containers"]:
        actions = [one.get(f"{kind}_probe") for kind in ("startup", "readiness", "liveness")]
        if any("httpGet" in action for action in (*actions, *(one.get("lifecycle") or {}).values()) if action):
            return ()
    return "ssl", "_hashlib"


def begin(plan: records.PodPlan, facts: sandbox.Facts, places: sandbox.Places) -> Start:
    """Make the sandbox and ask crun for the first containers; faults are in the result.

    Raises:
        claim.Taken: Another job runs the pod.
    """
    box = sandbox.Sandbox(plan, facts, places=places)
    start = Start(plan, box)
    # What containers inherit must depend neither on the job script, which has umask 077, nor on the user's shell.
    os.umask(0o022)
    linux.raise_limits()
    start.mark("agent")
    if plan["version"] != jobdir.VERSION:
        start.failure = (
            "FailedCreatePodSandBox",
            f"Cannot read a plan of version {plan['version']}: install this hpk.sif anew",
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


def _launched(box: sandbox.Sandbox, run: runs.Run) -> runs.Run | Exception:
    """Wait for crun and let the container's process go; crun's own complaints are left to whoever takes over."""
    run.created = processes.wait(run.starter)
    if run.created == 0:
        try:
            runs.launch(box, run)
        except OSError as error:
            return error
    return run


def first_containers(plan: records.PodPlan) -> list[records.ContainerPlan]:
    """Return those that may start before anything else is known: the first init, or the apps up to a postStart hook."""
    if plan["containers"][0]["kind"] != "app":
        return plan["containers"][:1]
    first: list[records.ContainerPlan] = []
    for one in plan["containers"]:
        first.append(one)
        if (one.get("lifecycle") or {}).get("postStart"):
            break
    return first


def entry() -> None:
    """Run and leave at once: nothing of the interpreter's own clean-up matters, and it takes time."""
    sys.stdout, sys.stderr = output.Output(1), output.Output(2)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
