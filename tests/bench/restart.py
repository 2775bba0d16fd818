"""A kubelet that restarts with 500 running pods: how long until it has all of them, and what it asks of whom.

API server and Slurm are fakes in memory; the link is real: 500 agents of another process, each with a certificate and
a gRPC connection of its own, dial again as agents do.  No cluster is needed.

    python -m tests.bench.restart DIRECTORY     the agents, until standard input ends
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk import jobdir
from hpk.link import client as link_client
from hpk.link import doorbell, wire
from hpk.link import server as link_server
from hpk.pods import submit
from hpk.slurm import model, poller
from tests import background
from tests.bench import result
from tests.fakes import link, path
from tests.fakes import slurm as fake_slurm

if TYPE_CHECKING:
    from collections.abc import Iterator

PODS = 500
PATIENCE_SECONDS = 300.0
CALLS_OF_A_SQUEUE = 2
"""Of slurmctld."""


def adopts() -> list[dict[str, Any]]:
    """Seconds until every pod's job is known and its agent on the line, and what that took."""
    with tempfile.TemporaryDirectory() as directory:
        _descriptors()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))  # warnings
        found = asyncio.run(_measure(Path(directory)))
    return [
        result.result("restart-adopts-500", [found.pop("seconds")], details=found),
    ]


def _descriptors() -> None:
    """As many as the agents need, a connection each at both ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class World(path.World):
    """The fakes of a pod's path, but with the real allocator, poller and link.

    Attributes:
        source: Slurm; counts the questions.
        adopted_at: When the last kubelet had all pods.
    """

    def __init__(self, home: Path) -> None:
        self.source = fake_slurm.FakeSource()
        super().__init__(home)
        self._home = home
        self.adopted_at = 0.0

    def start(self) -> None:
        """A new kubelet over the same world."""
        super().start()
        self.poller = poller.Poller(self.source, poll_seconds=15.0)
        slurm: Any = None
        self.jobs = submit.JobPerPod(slurm, self.poller, state=self.state, on_change=self.pods.mark)
        self.used = dataclasses.replace(self.used, allocator=self.jobs)

    async def run(self) -> None:
        """Run it until cancelled."""
        certificate, key = link.authority().issue(wire.SERVER_NAME)
        self.link = link_server.LinkServer(
            ca=link.authority().pem,
            certificate=certificate,
            key=key,
            host="127.0.0.1",
            on_report=self.agents.took_report,
            on_connected=self.agents.connected,
            on_disconnected=self.agents.disconnected,
            bell=doorbell.Doorbell(
                host="127.0.0.1",
                is_known=self.pods.informer.objects.__contains__,
                key=functools.partial(doorbell.key_of, b"bench"),
                read=self.agents.rung,
            ),
        )
        self.agents.line = self.link
        port = await self.link.start()
        jobdir.write_json(str(self._home / "endpoint.json"), {"host": "127.0.0.1", "port": port})
        try:
            async with asyncio.TaskGroup() as group:
                for service in (functools.partial(self.pods.run, self.used), self.poller.run, self.recorder.run):
                    group.create_task(service())
        finally:
            await self.link.stop()

    @property
    def adopted(self) -> int:
        """How many pods have their job and their agent."""
        return sum(
            1
            for uid, worker in self.pods._workers.items()
            if worker._tenancy.allocation is not None and self.agents.is_connected(uid)
        )


async def _measure(home: Path) -> dict[str, float]:
    world = World(home)
    uids = [world.create(f"p{number}") for number in range(PODS)]
    agents = []
    for number, uid in enumerate(uids):
        said = report(uid, str(number + 1))
        _write(world, uid, number, said)
        certificate, key = link.authority().issue(uid)
        agents.append({"uid": uid, "certificate": certificate.decode(), "key": key.decode(), "report": said})
    (home / "agents.json").write_text(json.dumps({"ca": link.authority().pem.decode(), "agents": agents}))
    with _dialling(home):
        await _until_adopted(world)  # the first kubelet: nothing has been told of the pods yet
        world.start()
        world.api.calls.clear()
        world.source.asked = 0
        began, used = time.monotonic(), time.process_time()
        await _until_adopted(world, settle_seconds=5.0)
        calls = collections.Counter(call.verb for call in world.api.calls)
        return {
            "seconds": world.adopted_at - began,
            "cpu-seconds": time.process_time() - used,
            "events": float(sum(1 for call in world.api.calls if "/events" in call.path and call.verb != "watch")),
            "api-requests": float(sum(calls.values())),
            "status-patches": float(calls["patch"]),
            "slurmctld-calls": float(world.source.asked * CALLS_OF_A_SQUEUE),
        }


async def _until_adopted(world: World, *, settle_seconds: float = 0.0) -> None:
    """Run a kubelet until it has all pods, and some seconds more."""
    running = asyncio.create_task(world.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while world.adopted < PODS:
                if running.done():
                    await running  # raises why it has ended
                await asyncio.sleep(0.02)
        world.adopted_at = time.monotonic()
        await asyncio.sleep(settle_seconds)
    finally:
        await background.end(running)


def _write(world: World, uid: str, number: int, said: dict[str, Any]) -> None:
    """What the pod's directory holds, and its job in Slurm."""
    directory = world.state.pod(uid)
    jobdir.make_directory(directory.root)
    container = {"name": "c", "image": "i", "image_id": "i@sha256:1"}
    jobdir.write_json(directory.plan, {"uid": uid, "containers": [container], "volumes": []})
    jobdir.write_json(directory.submission, {"job_id": str(number + 1), "submitted_at": time.time()})
    jobdir.write_bytes(directory.claim, str(number + 1).encode())
    jobdir.write_json(directory.report, said)
    job = model.Job(id=str(number + 1), state=model.JobState.RUNNING, comment=uid, work_directory=directory.root)
    world.source.answer.append(job)


def report(uid: str, job: str) -> dict[str, Any]:
    """What the agent of a pod that runs says."""
    now = time.time()
    container = {
        "state": "running",
        "reason": "",
        "message": "",
        "started_at": now,
        "terminated": None,
        "last_terminated": None,
        "restart_count": 0,
        "started": True,
        "ready": True,
        "container_id": "x",
    }
    made = {"version": 1, "uid": uid, "sequence": 3, "job_id": job, "node": "c1", "host_ip": "10.0.0.1"}
    made |= {"pod_ip": "10.244.0.2", "started_at": now, "finished_at": None, "ended": None, "events": []}
    return {**made, "containers": {"c": container}}


@contextlib.contextmanager
def _dialling(home: Path) -> Iterator[None]:
    """The agents, in a process of their own."""
    argv = [sys.executable, "-m", "tests.bench.restart", str(home)]
    agents = subprocess.Popen(argv, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    try:
        yield
    finally:
        agents.kill()
        agents.wait()
        if agents.stdin:
            agents.stdin.close()


def _ignore(_request: object) -> None:
    pass


async def _dial(home: Path) -> None:
    known = json.loads((home / "agents.json").read_text())
    handlers = link_client.Handlers(
        terminate=_ignore, serve=link.serve_nothing, start=_ignore, renew=_ignore, set_clock=lambda _: False
    )
    for one in known["agents"]:
        agent = link_client.Agent(
            uid=one["uid"],
            job_id=one["report"]["job_id"],
            version="0",
            ca=known["ca"].encode(),
            certificate=one["certificate"].encode(),
            key=one["key"].encode(),
            endpoint_file=str(home / "endpoint.json"),
        )
        made = link_client.LinkClient(agent, handlers)
        made.publish(one["report"]["sequence"], json.dumps(one["report"]).encode())
        made.start()
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    _descriptors()
    asyncio.run(_dial(Path(sys.argv[1])))
