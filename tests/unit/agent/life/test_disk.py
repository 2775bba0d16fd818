"""What a pod takes of the node's disk is found, and said once."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.boot import volumes
from hpk.agent.life import disk

if TYPE_CHECKING:
    from pathlib import Path

KIB = 1024
PLAN: dict[str, Any] = {
    "volumes": [
        {"name": "v", "kind": "empty_dir", "medium": ""},
        {"name": "w", "kind": "empty_dir"},
        {"name": "m", "kind": "empty_dir", "medium": "Memory"},
        {"name": "s", "kind": "files"},
    ],
    "containers": [{"name": "c"}, {"name": "c-1"}],
}


@pytest.fixture
def box(tmp_path: Path) -> Any:
    """A sandbox with two emptyDirs on disk; containers c and c-1 have run."""
    made = volumes.Volumes(scratch=str(tmp_path / "volumes"), private=str(tmp_path / "private"))
    for volume in PLAN["volumes"][:2]:
        made.make(volume)
    for name in ("c-0", "c-1-0"):
        for part in ("upper", "work", "root"):
            (tmp_path / "roots" / name / part).mkdir(parents=True)
    places = SimpleNamespace(scratch=str(tmp_path), pod=jobdir.PodDirectory(str(tmp_path / "pod")))
    return SimpleNamespace(plan=PLAN, places=places, volumes=made)


def limit(kind: Any, name: str, kib: int) -> Any:
    """A limit."""
    return {"kind": kind, "name": name, "bytes": kib * KIB, "message": f"{kind} {name}"}


def fill(path: Path, kib: int) -> None:
    """A file that takes so much."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"x" * kib * KIB)
        file.flush()
        os.fsync(file.fileno())  # some file systems count blocks only then


def exceeded(box: Any, *limits: Any) -> str:
    """The message of the limit that is exceeded; empty if none is."""
    found = disk.DiskMeter(box).exceeded(list(limits))
    return found["message"] if found else ""


def test_a_volume_is_measured_with_all_below_it(box: Any, tmp_path: Path) -> None:
    """Only the one that is over its limit is named."""
    both = limit("volume", "w", 100), limit("volume", "v", 100)
    assert exceeded(box, *both) == ""
    fill(tmp_path / "volumes/v/deep/er/x", 80)
    assert exceeded(box, *both) == ""
    fill(tmp_path / "volumes/v/y", 80)
    assert exceeded(box, *both) == "volume v"


def test_a_container_s_layer_and_logs_count_and_not_its_image(box: Any, tmp_path: Path) -> None:
    """Nor another container's whose name begins with its own."""
    fill(tmp_path / "roots/c-0/root/usr/lib/image", 400)
    fill(tmp_path / "roots/c-1-0/upper/x", 400)
    fill(tmp_path / "volumes/v/x", 400)
    fill(tmp_path / "roots/c-0/upper/x", 80)
    assert exceeded(box, limit("container", "c", 100)) == ""
    fill(tmp_path / "pod/logs/c/0.log", 80)
    assert exceeded(box, limit("container", "c", 100)) == "container c"
    assert exceeded(box, limit("container", "c-1", 100)) == "container c-1"


def test_the_pod_is_all_of_it(box: Any, tmp_path: Path) -> None:
    """Volumes on disk, layers and logs; a file with two names counts once, holes do not."""
    fill(tmp_path / "roots/c-0/upper/x", 100)
    fill(tmp_path / "volumes/w/x", 100)
    (tmp_path / "volumes/w/y").hardlink_to(tmp_path / "volumes/w/x")
    with (tmp_path / "volumes/v/sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert exceeded(box, limit("pod", "", 280)) == ""
    fill(tmp_path / "pod/logs/c-1/0.log", 100)
    assert exceeded(box, limit("pod", "", 280)) == "pod "


@pytest.mark.virtual_time
async def test_it_is_said_once(box: Any, tmp_path: Path) -> None:
    """And then nothing is measured any more."""
    box.plan = {**PLAN, "disk_limits": [limit("volume", "v", 10)]}
    said: list[str] = []
    watching = asyncio.create_task(disk.watch(box, on_exceeded=said.append))
    fill(tmp_path / "volumes/v/x", 20)
    async with asyncio.timeout(30):
        await watching
    assert said == ["volume v"]


async def test_a_pod_without_limits_costs_nothing(box: Any) -> None:
    """The watch is over at once."""
    async with asyncio.timeout(30):
        await disk.watch(box, on_exceeded=pytest.fail)


def test_a_measurement_can_be_given_up(box: Any) -> None:
    """A pod that ends does not wait for a walk through millions of files."""
    meter = disk.DiskMeter(box)
    meter.is_given_up = True
    with pytest.raises(disk.GivenUp):
        meter.exceeded([limit("volume", "v", 1)])
