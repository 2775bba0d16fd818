"""The report reaches the disk whatever the pod does."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir, records
from hpk.agent.life import report

if TYPE_CHECKING:
    from pathlib import Path

PLAN: Any = {"uid": "u", "containers": [{"name": "c", "kind": "app"}]}


async def written(path: Path, reporter: report.AgentReporter) -> dict[str, Any]:
    """The report as it is on the disk, when it has got there."""
    await reporter.settled(timeout_seconds=60)
    found: dict[str, Any] = json.loads(path.read_bytes())  # noqa: ASYNC240 - a small file
    return found


def made(path: Path) -> report.AgentReporter:
    """A reporter of a new pod."""
    return report.AgentReporter(report.first_report(PLAN, job_id="7", node="n", host_ip="", pod_ip=""), path=str(path))


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


@pytest.mark.parametrize(
    ("is_heard", "is_full", "code"), [(False, False, 0), (True, True, 0), (False, True, records.UNRECORDED["Failed"])]
)
async def test_an_end_that_nobody_has_is_in_the_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_heard: bool,  # noqa: FBT001
    is_full: bool,  # noqa: FBT001
    code: int,
) -> None:
    """Neither the kubelet, by the link, nor the home: Slurm keeps it."""

    def full(*_: Any, **__: Any) -> None:
        raise OSError(122, "Disk quota exceeded")

    if is_full:
        monkeypatch.setattr(jobdir, "write_bytes", full)
    reporter = made(tmp_path / "report.json")
    writing = asyncio.create_task(reporter.run())
    reporter.finish()
    await reporter.settled(timeout_seconds=60)
    assert report.exit_code(reporter, PLAN, is_heard=is_heard) == code
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
    for number in range(2 * report.MOST_EVENTS):
        reporter.event("Warning", "Unhealthy", f"{number}" + "x" * 10_240, container="c")
    assert len(report._as_json(reporter.report)) < 300_000


def said(reporter: report.AgentReporter) -> list[tuple[str, int, int]]:
    """The text, count and number of each event."""
    return [(event["message"], event["count"], event["number"]) for event in reporter.report["events"]]


def test_what_is_said_again_raises_a_count(tmp_path: Path) -> None:
    """One event, the newest, with a number that the kubelet has not seen; of another container it is another."""
    reporter = made(tmp_path / "report.json")
    for container in ("c", "c", "d", "c"):
        reporter.event("Warning", "Unhealthy", "no", container=container)
    reporter.event("Warning", "Unhealthy", "not at all", container="c")
    assert said(reporter) == [("no", 1, 3), ("no", 3, 4), ("not at all", 1, 5)]


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which it is judged whether an event is worth a report."""
    made = Clock()
    monkeypatch.setattr(report.Worth.__init__, "__defaults__", (made,))
    return made


@pytest.mark.parametrize(
    ("text", "at_first"),
    [("connection refused", range(5, 20)), ("it is {at}", range(25, 40))],
    ids=["always the same", "each time another"],
)
def test_a_probe_that_fails_for_a_day_writes_the_report_now_and_then(
    tmp_path: Path, clock: Clock, text: str, at_first: range
) -> None:
    """It is a file on the home; what is new is told at once, up to a bound, and the count of what is not rises."""
    reporter = made(tmp_path / "report.json")
    changes = Counter[int]()
    for second in range(0, 24 * 3600, 10):
        clock.now = float(second)
        before = reporter.report["sequence"]
        reporter.event("Warning", "Unhealthy", text.format(at=second), container="c")
        changes[second // 3600] += reporter.report["sequence"] - before
    assert changes[0] in at_first
    assert all(1 <= changes[hour] <= 13 for hour in range(1, 24))
    assert len(reporter.report["events"]) <= report.MOST_EVENTS


def test_events_of_one_type_leave_the_other_its_own(tmp_path: Path, clock: Clock) -> None:
    """However many warnings there are."""
    assert clock.now == 0.0
    reporter = made(tmp_path / "report.json")
    for number in range(100):
        reporter.event("Warning", "Unhealthy", str(number))
    before = reporter.report["sequence"]
    reporter.event("Normal", "Killing", "Stopping container c")
    assert (before, reporter.report["sequence"]) == (report.BURST, report.BURST + 1)


async def test_what_was_not_told_goes_with_the_next_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost: the pod's end, say, tells all."""
    monkeypatch.setattr(report, "BURST", 0)
    reporter = made(tmp_path / "report.json")
    writing = asyncio.create_task(reporter.run())
    reporter.event("Warning", "Unhealthy", "no")
    reporter.finish()
    assert (await written(tmp_path / "report.json", reporter))["events"][0]["message"] == "no"
    writing.cancel()
