"""Reports of nodes whose clocks are not ours."""

from __future__ import annotations

from typing import Any

import pytest

from hpk.pods import skew


def run(started_at: float, finished_at: float) -> dict[str, Any]:
    """How a container ended."""
    return {"exit_code": 1, "started_at": started_at, "finished_at": finished_at}


def report(ahead: float) -> Any:
    """All times of a report, as a node says them whose clock is so far ahead of ours."""
    container = {
        "state": "running",
        "started_at": 1300.0 + ahead,
        "terminated": None,
        "last_terminated": run(1100.0 + ahead, 1200.0 + ahead),
    }
    waiting = {"state": "waiting", "started_at": None, "terminated": None, "last_terminated": None}
    made: dict[str, Any] = {"sequence": 3, "started_at": 1000.0 + ahead, "finished_at": None}
    made |= {"containers": {"c": container, "w": waiting}, "events": [{"number": 1, "at": 1001.0 + ahead}]}
    return made | ({"clock_ahead_seconds": ahead} if ahead else {})


def test_all_times_become_ours() -> None:
    """Of pod, containers, their last runs, and events; in both directions."""
    for ahead in (120.0, -120.0):
        told = skew.corrected(report(ahead))
        assert {**told, "clock_ahead_seconds": 0} == {**report(0), "clock_ahead_seconds": 0}


def test_the_end_too() -> None:
    """Of a pod and a container that are over."""
    over: Any = report(120.0)
    over["finished_at"] = 1520.0
    over["containers"]["c"] |= {"started_at": None, "terminated": run(1420.0, 1520.0)}
    told = skew.corrected(over)
    assert told["finished_at"] == 1400.0
    assert told["containers"]["c"]["terminated"] == run(1300.0, 1400.0)


def test_a_clock_that_is_ours_changes_nothing() -> None:
    """The report as it is, also one of an agent that does not know."""
    same = report(0)
    assert skew.corrected(same) is same


@pytest.mark.parametrize("ahead", [120.0, -2000.0])
def test_before_the_agent_knows_times_lie_between_submission_and_reading(ahead: float) -> None:
    """As a whole: what took a while still does."""
    unknown = report(ahead)
    unknown.pop("clock_ahead_seconds")
    told = skew.corrected(unknown, earliest=990.0, latest=1310.0)
    assert told["started_at"] >= 990
    assert told["containers"]["c"]["started_at"] == told["started_at"] + 300 <= 1310
    assert told["events"][0]["at"] == told["started_at"] + 1


def test_the_end_is_not_after_its_reading() -> None:
    """Of a pod that was over before its agent could connect."""
    over: Any = report(0)
    over["finished_at"] = 1400.0
    assert skew.corrected(over, earliest=900.0, latest=1350.0)["finished_at"] == 1350.0


def test_moments_that_fit_stay() -> None:
    """The report as it is."""
    same = report(0)
    assert skew.corrected(same, earliest=1000.0, latest=1300.0) is same
