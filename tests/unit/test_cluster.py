"""What the cluster has is learnt as often as it may change, and a silent Slurm takes nothing of it back."""

from __future__ import annotations

import asyncio
import dataclasses
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

from hpk import cluster, errors
from hpk.node import nodestatus, systeminfo
from hpk.slurm import model
from tests import background, waiting

if TYPE_CHECKING:
    import pytest

FACTS = nodestatus.NodeFacts(
    name="hpk",
    system=systeminfo.SystemInfo(
        machine_id="m", system_uuid="s", boot_id="b", kernel_version="6", os_image="D", architecture="amd64"
    ),
    address="10.0.0.1",
    hostname="c1",
    port=10250,
    apptainer_version="1.4.0",
    max_pods=1000,
)


class FakeSlurm:
    """A cluster with one partition, which counts the questions for details."""

    def __init__(self) -> None:
        self.answer = model.ClusterCapacity(
            cpus=8, memory_bytes=1 << 30, gres={}, nodes={}, partitions={"a": partition("a")}
        )
        self.error: Exception | None = None
        self.detailed = self.asked = 0

    async def capacity(self) -> model.ClusterCapacity:
        self.asked += 1
        if self.error:
            raise self.error
        return self.answer

    async def partition_names(self) -> frozenset[str]:
        self.detailed += 1
        return frozenset({*self.answer.partitions, "hidden"})

    async def architectures(self) -> dict[str, str]:
        return {"c1": "x86_64"}

    async def kill_wait_seconds(self) -> int:
        if self.error:
            raise self.error
        return 7


def partition(name: str) -> model.Partition:
    """A partition without limits."""
    return model.Partition(name=name, is_default=True, max_seconds=None, default_seconds=None)


def make(slurm: FakeSlurm, **more: Any) -> cluster.ClusterMonitor:
    """The cluster over what Slurm says."""
    return cluster.ClusterMonitor(cast("Any", slurm), FACTS, **more)


async def test_silence_takes_nothing_back() -> None:
    """Not even an error of a kind that nobody expects; the text is kept for the node's condition."""
    slurm = FakeSlurm()
    made = make(slurm)
    await made.refresh()
    before = made.for_pods()
    assert (before.allocatable["cpu"], before.partition_names) == (Decimal(8), frozenset({"a", "hidden"}))
    answered_at = made.answered_at
    slurm.error = ValueError("odd text")
    await made.refresh()
    assert (made.error, made.answered_at, made.for_pods()) == ("odd text", answered_at, before)
    slurm.error = None
    await made.refresh()
    assert made.error == ""


async def test_details_are_asked_for_when_the_partitions_change() -> None:
    """They cost slurmctld more than sinfo does, and change with its configuration only."""
    slurm = FakeSlurm()
    made = make(slurm)
    await made.refresh()
    await made.refresh()
    assert slurm.detailed == 1
    slurm.answer = dataclasses.replace(slurm.answer, partitions={"b": partition("b")})
    await made.refresh()
    assert (slurm.detailed, made.partition_names) == (2, frozenset({"b", "hidden"}))


async def test_nothing_is_offered_before_the_first_answer() -> None:
    """A pod is admitted against what is known."""
    found = make(FakeSlurm()).for_pods()
    assert (found.capacity, found.allocatable, found.labels["kubernetes.io/arch"]) == (None, {}, "amd64")


async def test_slurms_own_patience_is_taken_where_it_says() -> None:
    """Its default, where it does not."""
    slurm = FakeSlurm()
    assert await make(slurm).kill_wait_seconds() == 7
    slurm.error = errors.SlurmUnavailable("away")
    assert await make(slurm).kill_wait_seconds() == cluster.DEFAULT_KILL_WAIT_SECONDS


async def test_what_others_have_set_on_the_node_is_taken_from_the_api_server() -> None:
    """Labels, taints, the cordon and resources; our own labels are there before the node is."""
    assert make(FakeSlurm()).for_binder() is None
    raw = {
        "metadata": {"name": "hpk", "labels": {"disk": "ssd"}},
        "spec": {"unschedulable": True, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"example.com/fpga": "2", "cpu": "8", "pods": "9"},
            "allocatable": {"cpu": "8"},
            "conditions": [{"type": "Ready", "status": "False", "reason": "SlurmUnavailable", "message": "away."}],
        },
    }
    found = make(FakeSlurm(), node_object=lambda: raw).for_binder()
    assert found is not None
    assert (found.labels["disk"], found.labels["kubernetes.io/os"]) == ("ssd", "linux")
    assert (found.is_unschedulable, [taint.key for taint in found.taints]) == (True, ["k"])
    assert found.trouble == "away"
    assert found.extended == {"example.com/fpga": Decimal(2)}


async def test_who_waits_for_slurm_to_have_more_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when its answer is another."""
    slurm, heard = FakeSlurm(), list[str]()
    made = make(slurm)
    assert (await made.refresh(), await made.refresh()) == (True, False)
    monkeypatch.setattr(cluster, "CAPACITY_SECONDS", 0.0)
    running = asyncio.create_task(made.run(lambda: heard.append("changed")))
    for cpus in (16, 16, 24):
        slurm.answer, before = dataclasses.replace(slurm.answer, cpus=cpus), slurm.asked
        await waiting.until(lambda before=before: slurm.asked > before + 1)  # type: ignore[misc]
    await background.end(running)
    assert heard == ["changed", "changed"]
