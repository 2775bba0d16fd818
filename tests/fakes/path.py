"""A pod's path with everything around it in memory: API server, allocator, preparer, agents."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Self

from hpk import errors, jobdir
from hpk.aio import backoff
from hpk.kube import v1
from hpk.pods import (
    admit,
    agents,
    allocations,
    correlate,
    events,
    gate,
    occupants,
    prepare,
    services,
    statuswriter,
    watch,
    worker,
)
from tests import virtual, waiting
from tests.fakes import kube

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpk.volumes import sources

PODS = "/api/v1/namespaces/ns/pods"
SECONDS = 3600.0
"""Longest wait of a test for something that must happen; virtual where the test's loop is."""
LONGEST_LOOK_SECONDS = 0.25


QUICK = backoff.BackoffPolicy(first_seconds=0.01, cap_seconds=0.02)
"""As long as a closed lane of the gate holds pods here."""


class FakeAllocator:
    """Slurm as the worker sees it; `jobs` are states by job id, set by the test.

    Attributes:
        silent: How often it will not say how a job ended.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, allocations.AllocationState] = {}
        self.submitted: list[str] = []
        self.accounted: dict[str, allocations.AllocationState] = {}
        self.silent = 0
        self.released: list[str] = []
        self.signalled: list[str] = []
        self.found: dict[str, str] = {}
        self.claims: dict[str, str] = {}
        self.looked: list[str] = []
        self.refusals: list[errors.HpkError] = []
        self.limit: int | None = None
        self.refused = 0
        self._watches: dict[str, Callable[[], None]] = {}
        self.on_change: Callable[[str], None] = lambda _uid: None

    async def find(self, uid: str) -> allocations.Allocation | None:
        self.looked.append(uid)
        return allocations.Allocation(job_id=self.found[uid]) if uid in self.found else None

    async def claimant(self, uid: str) -> allocations.Allocation | None:
        return allocations.Allocation(job_id=self.claims[uid]) if uid in self.claims else None

    async def allocate(self, uid: str, *, script: str) -> allocations.Allocation:
        assert script
        if self.refusals:
            raise self.refusals.pop(0)
        if self.limit is not None and sum(not job.is_over for job in self.jobs.values()) >= self.limit:
            self.refused += 1
            raise errors.SlurmUnavailable("AssocMaxSubmitJobLimit")
        self.submitted.append(uid)
        job_id = str(100 + len(self.submitted))
        self.jobs[job_id] = allocations.AllocationState(
            phase=allocations.Phase.QUEUED, state="PENDING", reason="Priority"
        )
        return allocations.Allocation(job_id=job_id)

    async def release(self, allocation: allocations.Allocation, *, only_queued: bool = False) -> None:
        if only_queued and self.jobs[allocation.job_id].phase is not allocations.Phase.QUEUED:
            return
        self.released.append(allocation.job_id)
        self.say(
            allocation.job_id,
            phase=allocations.Phase.ENDED,
            cause=allocations.Cause.CANCELLED,
            state="CANCELLED",
        )

    async def ask_to_end(self, allocation: allocations.Allocation) -> None:
        self.signalled.append(allocation.job_id)

    async def recall(self, allocation: allocations.Allocation) -> allocations.AllocationState | None:
        if self.silent:
            self.silent -= 1
            raise errors.SlurmUnavailable("Rate limit exceeded")
        return self.accounted.get(allocation.job_id)

    def observe(self, allocation: allocations.Allocation) -> allocations.AllocationState:
        return self.jobs.get(allocation.job_id, allocations.AllocationState())

    def watch(self, uid: str, allocation: allocations.Allocation) -> None:
        self._watches[allocation.job_id] = lambda: self.on_change(uid)

    def forget(self, allocation: allocations.Allocation) -> None:
        self._watches.pop(allocation.job_id, None)

    def ask_soon(self, *, after_seconds: float = 0.0) -> None:
        pass

    def say(self, job_id: str, **state: Any) -> None:
        """Slurm says something new of a job."""
        self.jobs[job_id] = allocations.AllocationState(**state)
        self._watches.get(job_id, lambda: None)()


class FakePreparer:
    """Makes every pod ready, unless the test has an error for it; those in `held`, by name, when it says so."""

    def __init__(self) -> None:
        self.errors: list[errors.HpkError] = []
        self.asked = 0
        self.prepared: list[str] = []
        self.most_at_once = self._at_once = 0
        self.asked_for: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.volumes: list[Any] = []
        self.tokens: list[sources.IssuedToken | errors.HpkError] = []
        self.tokens_asked: list[sources.TokenKey] = []
        self.forgotten: list[str] = []

    async def token(self, _pod: Any, key: sources.TokenKey) -> sources.IssuedToken:
        self.tokens_asked.append(key)
        made = self.tokens.pop(0)
        if isinstance(made, errors.HpkError):
            raise made
        return made

    async def pull(self, pod: Any, **_: Any) -> dict[str, Any]:
        self.asked += 1
        if held := self.held.get(pod.metadata.name):
            await held.wait()
        if self.errors:
            raise self.errors.pop(0)
        return {}

    def keep(self, plan: Any) -> None:
        assert plan

    async def forget(self, uid: str) -> None:
        self.forgotten.append(uid)

    async def prepare(self, admitted: admit.Admitted, **_: Any) -> prepare.Ready:
        pod = admitted.pod
        self.prepared.append(pod.metadata.name)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        await asyncio.sleep(0)
        self._at_once -= 1
        containers = [{"name": c.name, "image": c.image, "image_id": ""} for c in pod.all_containers]
        plan: Any = {"containers": containers, "uid": pod.metadata.uid, "volumes": self.volumes}
        return prepare.Ready(plan=plan, script="#!/bin/sh\n")

    async def prepare_ephemeral(self, _pod: Any, container: Any, **_: Any) -> Any:
        self.asked_for.append(container.name)
        if held := self.held.get(container.name):
            await held.wait()
        if self.errors:
            raise self.errors.pop(0)
        return {"name": container.name, "image": container.image}


class FakeLine:
    """The link: who was asked to end, and which containers to start."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, float]] = []
        self.started: list[str] = []
        self.images: list[str] = []
        self.why_not = ""
        self.renewed: list[Any] = []
        self.is_old = False
        self.is_full = False
        self.reasons: list[str] = []

    def terminate(self, uid: str, *, grace_seconds: float, reason: str) -> bool:
        if self.is_full:
            return False
        self.reasons.append(reason)
        self.asked.append((uid, grace_seconds))
        return True

    def renew(self, uid: str, volumes: Any) -> bool:
        assert uid
        if not self.is_old:
            self.renewed.append(volumes)
        return not self.is_old

    def start_container(self, uid: str, plan: Any) -> None:
        assert uid
        if self.why_not:
            raise errors.AgentUnavailable(self.why_not)
        self.started.append(plan["name"])
        self.images.append(plan["image"])


class World:
    """Everything, and the running rooms of the path."""

    def __init__(self, home: Path) -> None:
        self.state = jobdir.StateDirectory(str(home))
        self.api = kube.FakeKube()
        self.allocator = FakeAllocator()
        self.preparer = FakePreparer()
        self.line = FakeLine()
        self._task: asyncio.Task[None] | None = None
        self.start()

    def start(self) -> None:
        """A new kubelet over the same world."""
        api: Any = self.api
        reporter = statuswriter.StatusWriter(api)
        self.recorder = events.EventRecorder(api, component="kubelet", host="hpk")
        self.pods = watch.Pods(
            api,
            node="hpk",
            state=self.state,
            occupants=occupants.Occupants(),
            recorder=self.recorder,
            reporter=reporter,
            make_worker=lambda uid: worker.Worker(uid, self.used),
        )
        self.clock = virtual.running()
        self.agents = agents.Agents(self.state, on_change=self.pods.mark, clock=self.clock)
        self.agents.line = self.line
        self.allocator.on_change = self.pods.mark
        self.gate = gate.Gate(
            on_open=self.pods.mark, pauses=dict.fromkeys(gate.PAUSES, QUICK), clock=self.clock.monotonic
        )
        preparer: Any = self.preparer
        self.used = services.Services(
            find=self.pods.informer.objects.get,
            listen=self.pods.listen,
            beside=self.pods.beside,
            cluster=lambda: admit.Cluster(name="hpk"),
            preparer=preparer,
            allocator=self.allocator,
            agents=self.agents,
            reporter=reporter,
            recorder=self.recorder,
            state=self.state,
            preparations=asyncio.Semaphore(4),
            submissions=asyncio.Semaphore(1),
            gate=self.gate,
            clock=self.clock,
        )

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.pods.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """The kubelet is gone; the world stays. Raises what the kubelet has died of, if it has."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def restart(self) -> None:
        """The kubelet ends, and another starts."""
        await self.stop()
        self.start()
        await self.__aenter__()

    def create(self, name: str = "p", **spec: Any) -> str:
        """A bound pod; its UID."""
        body = {
            "metadata": {"name": name, "namespace": "ns"},
            "spec": {"nodeName": "hpk", "restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}], **spec},
        }
        return str(self.api.put(f"{PODS}/{name}", body)["metadata"]["uid"])

    async def delete(self, name: str = "p", *, grace: int = 30) -> None:
        """As kubectl delete does."""
        await self.api.delete(f"{PODS}/{name}", body={"gracePeriodSeconds": grace})

    def pod(self, name: str = "p") -> v1.Pod:
        """The pod, as the kubelet reads it."""
        return v1.pod(self.api.peek(f"{PODS}/{name}"))

    def gate_holds(self, uid: str) -> bool:
        """Whether a closed lane of the gate holds the pod."""
        return any(uid in lane.held for lane in self.gate._lanes.values())

    def status(self, name: str = "p") -> dict[str, Any]:
        """The pod's status, as the API server has it."""
        found: dict[str, Any] = self.api.peek(f"{PODS}/{name}").get("status") or {}
        return found

    def told(self) -> list[correlate.PodEvent]:
        """The events that wait to be posted; each once."""
        found = [told.event for told in self.recorder._waiting.values()]
        self.recorder._waiting.clear()
        return found

    def exists(self, name: str = "p") -> bool:
        """Whether the API server has the pod."""
        try:
            self.api.peek(f"{PODS}/{name}")
        except KeyError:
            return False
        return True

    async def passes(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def until(self, holds: Callable[[], bool], *, seconds: float = SECONDS) -> None:
        """Wait until it holds; the test fails if it never does."""
        await waiting.until(holds, limit_seconds=seconds, longest_pause_seconds=LONGEST_LOOK_SECONDS)
