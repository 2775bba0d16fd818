"""The agent after the first container's start: the event loop, and everything in it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib
import os
import signal
from typing import TYPE_CHECKING

import hpk
from hpk import jobdir
from hpk.agent.life import disk, endrequest, logs, pod, podcontext, reaping, report, signals, supervise
from hpk.agent.serve import sessions, uplink
from hpk.link import doorbell

if TYPE_CHECKING:
    from hpk.agent.boot import sequence
    from hpk.agent.life import memory
    from hpk.link import client

DISK_SECONDS = 10.0
"""How long a finished agent waits for a disk that does not take the last report."""
LINK_SECONDS = 5.0
"""How long a finished agent waits for the kubelet to read the report, and for clients; the file stays."""
HURRIED_SECONDS = 1.0
"""The same if Slurm is about to kill the job, because the node has yet to be cleaned."""


def run(start: sequence.Start) -> int:
    """Run the pod to its end; return the agent's exit code."""
    gc.freeze()
    gc.enable()
    with asyncio.Runner() as runner:
        return runner.run(_run(start))


async def _run(start: sequence.Start) -> int:
    start.mark("asyncio")
    loop = asyncio.get_running_loop()
    box, facts = start.box, start.box.facts
    first = report.first_report(
        start.plan, job_id=facts.job_id, node=facts.node, host_ip=box.host_ip, pod_ip=box.pod_ip
    )
    reporter = report.AgentReporter(first, path=box.places.pod.report)
    reaper = reaping.Reaper(loop)
    context = podcontext.PodContext(box, reporter=reporter, reaper=reaper, writer=logs.Writer(loop), job=box.job)
    the_pod = pod.PodRunner(context, begun=start.begun)
    handlers = signals.Handlers(loop)
    handlers.on(signal.SIGCHLD, reaper.reap)
    signals.listen(handlers, the_pod, start.plan.get("warning"), script_seconds=facts.script_seconds)

    def faulted(why: str) -> None:
        reporter.event("Warning", "AgentFault", why)

    writing = asyncio.create_task(supervise.restarted(reporter.run, name="report"), name="report")
    reporter.changed()
    life = asyncio.create_task(_live(start, the_pod, reporter), name="pod")
    loop.call_soon(reaper.reap)
    linking = functools.partial(_link, start, the_pod, reporter, context)
    link = uplink.Uplink(
        functools.partial(supervise.restarted, linking, name="link", on_fault=faulted),
        reporter=reporter,
        ringer=doorbell.Ringer(
            start.plan["uid"], key=start.plan["link"].get("bell"), endpoint_file=box.places.endpoint
        ),
        is_patient=uplink.is_patient(start.plan),
    )
    link.begin()
    sweeper = asyncio.create_task(_sweep(reaper, context.memory.kills), name="sweep")
    ends = endrequest.EndRequestWatcher(box.places.pod.end_request, the_pod, is_connected=lambda: link.is_connected)
    handlers.on(jobdir.END_SIGNAL, ends.signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {jobdir.END_SIGNAL})
    looking = supervise.restarted(ends.watch, name="end request", on_fault=faulted)
    watching_end = asyncio.create_task(looking, name="end request")
    measure = functools.partial(disk.watch, box, on_exceeded=the_pod.evict)
    measuring = asyncio.create_task(supervise.restarted(measure, name="disk limits", on_fault=faulted), name="disk")
    await life
    measuring.cancel()
    watching_end.cancel()
    reporter.finish()
    context.writer.close()
    cleaning = asyncio.create_task(asyncio.to_thread(_clean, start), name="clean")
    await reporter.settled(timeout_seconds=DISK_SECONDS)
    is_heard = await _acknowledged(link, start, reporter)
    if not is_heard:
        await reporter.stored(timeout_seconds=DISK_SECONDS)
    await asyncio.wait({cleaning}, timeout=60)
    await link.close()
    for task in (writing, sweeper):
        task.cancel()
    await asyncio.gather(writing, sweeper, measuring, watching_end, return_exceptions=True)
    _say_stages(start)
    return report.exit_code(reporter, start.plan, is_heard=is_heard)


async def _live(start: sequence.Start, the_pod: pod.PodRunner, reporter: report.AgentReporter) -> None:
    if start.failure is None:
        for why in start.box.left_out:
            reporter.event("Warning", "DNSConfigForming", why)
        await the_pod.live()
        return
    reason, message = start.failure
    reporter.report["ended"] = {"reason": "SetupFailed", "message": message}
    reporter.event("Warning", reason, message)
    reporter.changed()


async def _link(
    start: sequence.Start, the_pod: pod.PodRunner, reporter: report.AgentReporter, context: podcontext.PodContext
) -> client.LinkClient:
    """Dial the kubelet; the client continues on its own."""
    # In a thread: importing gRPC takes 0.2 s of CPU, and containers may need the loop.
    module = await asyncio.to_thread(importlib.import_module, "hpk.link.client")
    start.mark("link")
    keys = start.plan["link"]
    agent = module.Agent(
        uid=start.plan["uid"],
        job_id=start.box.facts.job_id,
        version=hpk.__version__,
        ca=keys["ca"].encode(),
        certificate=keys["certificate"].encode(),
        key=keys["key"].encode(),
        endpoint_file=start.box.places.endpoint,
    )
    handlers = module.Handlers(
        terminate=lambda asked: the_pod.end(asked.reason, message=asked.message, grace_seconds=asked.grace_seconds),
        serve=sessions.Server(context, the_pod).serve,
        start=the_pod.add,
        renew=start.box.renew_volumes,
        set_clock=the_pod.set_clock,
    )
    link: client.LinkClient = module.LinkClient(agent, handlers)
    link.start()
    reporter.attach(link)
    return link


async def _acknowledged(link: uplink.Uplink, start: sequence.Start, reporter: report.AgentReporter) -> bool:
    """Wait, within limits, until the kubelet has the last report and clients the last output; return whether it has."""
    if not os.path.exists(start.box.places.endpoint):  # noqa: ASYNC240 - one look
        return False
    is_heard = False
    ended = reporter.report["ended"]
    is_hurried = ended is not None and ended["reason"] == "Signalled"
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(HURRIED_SECONDS if is_hurried else LINK_SECONDS):
            await link.told(reporter.report["sequence"])
            is_heard = True
            await link.idle()
    return is_heard


async def _sweep(reaper: reaping.Reaper, kills: memory.Kills) -> None:
    while True:
        await asyncio.sleep(60)
        reaper.forget()
        kills.look()


def _clean(start: sequence.Start) -> None:
    """Clean the node: the job script cannot remove the files of subordinate ids."""
    try:
        start.box.close()
    except OSError as error:
        print(f"Cannot clean up: {error}", flush=True)  # noqa: T201 - the job's output is the log


def _say_stages(start: sequence.Start) -> None:
    """Print where the time went, for readers of the job's output."""
    steps = " ".join(f"{name}={at:.3f}" for name, at in start.stages)
    print(f"stages {steps}", flush=True)  # noqa: T201 - the job's output is the log
