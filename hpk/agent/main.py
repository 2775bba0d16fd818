"""The agent's way from the job script to the first container, and then its event loop.

Every import above :func:`main` delays each pod's start (`hpk.agent.boot`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # signal itself brings enum, 3 ms
import os
import sys

from hpk import jobdir, missing
from hpk.agent.boot import claim, output, quickjson, sandbox, sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hpk import records

ENDING_SIGNALS = (_signal.SIGINT, _signal.SIGTERM, jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL)


def main(arguments: list[str]) -> int:
    """Run the pod of this job; return 0 if its end has been reported."""
    # Until the event loop can act on them; a SIGTERM before that would end the pod without a report.
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
        start = sequence.begin(plan, facts, places)
    except claim.Taken as taken:
        print(taken, flush=True)  # noqa: T201 - the job's output is the log
        return 0
    with missing.Without(*spared(plan)):
        from hpk.agent import loop  # noqa: PLC0415 - asyncio and more, while the container starts

    return loop.run(start)


def spared(plan: records.PodPlan) -> tuple[str, ...]:
    """Return the modules that asyncio and hashlib can do without, unless a probe or hook may speak HTTPS.

    An HTTP one may be redirected to it. OpenSSL's bindings and their 8 MB of libraries cost each pod 10 to 15 ms of
    CPU.
    """
    for one in plan["containers"]:
        actions = [one.get(f"{kind}_probe") for kind in ("startup", "readiness", "liveness")]
        if any("httpGet" in action for action in (*actions, *(one.get("lifecycle") or {}).values()) if action):
            return ()
    return "ssl", "_hashlib"


def entry() -> None:
    """Run and exit at once, because the interpreter's clean-up only takes time."""
    sys.stdout, sys.stderr = output.JobOutput(1), output.JobOutput(2)
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
