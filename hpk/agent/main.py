"""From the job script to the first container in the fewest steps, and only then the event loop.

Every import above :func:`main` is paid for by each pod's start (`hpk.agent.boot`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os
import sys

from hpk import jobdir, missing
from hpk.agent.boot import claim, output, quickjson, sandbox, steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records

ENDING_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL)


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
    facts = sandbox.JobFacts(arguments)
    if facts.restart_count > 0:
        from hpk.agent.life import requeued  # noqa: PLC0415 - rare

        return requeued.refuse(plan, facts, places)
    try:
        start = steps.begin(plan, facts, places)
    except claim.Taken as taken:
        print(taken, flush=True)  # noqa: T201 - the job's output is the log
        return 0
    with missing.Without(*spared(plan)):
        from hpk.agent import loop  # noqa: PLC0415 - asyncio and all that, while the container starts

    return loop.run(start)


def spared(plan: records.PodPlan) -> tuple[str, ...]:
    """Return what asyncio and hashlib do without, unless a probe or a hook speaks HTTP, and may be sent on to HTTPS.

    OpenSSL's bindings and their 8 MB of libraries cost each pod 10 to 15 ms of CPU.
    """
    for one in plan["containers"]:
        actions = [one.get(f"{kind}_probe") for kind in ("startup", "readiness", "liveness")]
        if any("httpGet" in action for action in (*actions, *(one.get("lifecycle") or {}).values()) if action):
            return ()
    return "ssl", "_hashlib"


def entry() -> None:
    """Run and leave at once: nothing of the interpreter's own clean-up matters, and it takes time."""
    sys.stdout, sys.stderr = output.JobOutput(1), output.JobOutput(2)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
