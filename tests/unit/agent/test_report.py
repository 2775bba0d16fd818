"""The report reaches the disk whatever the pod does."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from hpk.agent import report

if TYPE_CHECKING:
    from pathlib import Path

PLAN: Any = {"uid": "u", "containers": [{"name": "c", "kind": "app"}]}


async def written(path: Path, reporter: report.Reporter) -> dict[str, Any]:
    """The report as it is on the disk, when it has got there."""
    await reporter.settled(timeout_seconds=5)
    found: dict[str, Any] = json.loads(path.read_bytes())  # noqa: ASYNC240 - a small file
    return found


def made(path: Path) -> report.Reporter:
    """A reporter of a new pod."""
    return report.Reporter(report.first_report(PLAN, job_id="7", node="n", host_ip="", pod_ip=""), path=str(path))


async def test_a_pod_that_has_all_threads_does_not_silence_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next change is written, and if there is none the same is tried again."""
    to_thread, refusals = asyncio.to_thread, [RuntimeError("can't start new thread")]

    async def refusing(*arguments: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return await to_thread(*arguments, **options)

    monkeypatch.setattr(asyncio, "to_thread", refusing)
    reporter = made(tmp_path / "report.json")
    writing = asyncio.create_task(reporter.run())
    reporter.changed()
    await asyncio.sleep(0)
    reporter.event("Normal", "Started", "Container started", container="c")
    assert (await written(tmp_path / "report.json", reporter))["events"][0]["reason"] == "Started"
    writing.cancel()


@pytest.mark.parametrize("odd", [0xD800, 0xDCFF])
async def test_a_character_that_no_file_can_hold_keeps_nothing_back(tmp_path: Path, odd: int) -> None:
    """It is replaced, a byte of no text too, so that whoever reads the report can; the rest is as it was."""
    reporter = made(tmp_path / "report.json")
    writing = asyncio.create_task(reporter.run())
    reporter.event("Warning", "Failed", f"exec: {chr(odd)}: not found", container="c")
    assert (await written(tmp_path / "report.json", reporter))["events"][0]["message"] == "exec: ?: not found"
    writing.cancel()


async def test_the_report_does_not_grow_with_what_a_probe_says(tmp_path: Path) -> None:
    """It is written anew for each event; of a message no more is kept than can be posted."""
    reporter = made(tmp_path / "report.json")
    for _ in range(2 * report.MOST_EVENTS):
        reporter.event("Warning", "Unhealthy", "x" * 10_240, container="c")
    assert len(report._as_json(reporter.report)) < 300_000
