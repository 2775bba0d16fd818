"""What is asked of Slurm before a job's time limit, and what the agent makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from hpk import jobdir
from hpk.kube import v1
from hpk.pods import warning
from hpk.slurm import parse


def pod(grace: int = 30) -> v1.Pod:
    """A pod with this grace."""
    spec: Any = {"containers": [{"name": "c"}], "terminationGracePeriodSeconds": grace}
    return v1.pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec})


@pytest.mark.parametrize(
    ("grace", "options", "directive", "plan"),
    [
        (30, {}, "B:50@45", (0.0, None, 0.0)),
        (30, {"time": "60"}, "B:50@45", (0.0, None, 0.0)),
        (30, {"signal": "USR1@600"}, "B:50@600", (555.0, 10, 0.0)),
        (30, {"signal": "R:USR2@10"}, "RB:50@45", (0.0, 12, 35.0)),
        (30, {"signal": "B:USR1", "time": "2"}, "B:50@60", (15.0, 10, 0.0)),
        # The user's signal is due at the job's start, when nobody listens yet.
        (30, {"signal": "USR1@600", "time": "5"}, "B:50@260", (195.0, 10, 0.0)),
        (30, {"signal": "USR1", "time": "1"}, "B:50@20", (0.0, 10, 0.0)),
        # Slurm keeps 16 bits.
        (100_000, {}, "B:50@65535", (0.0, None, 0.0)),
    ],
)
def test_one_warning_serves_the_grace_and_the_user_s_signal(
    grace: int, options: dict[str, str | None], directive: str, plan: tuple[float | None, int | None, float]
) -> None:
    """It comes early enough for both; the agent does each in its time."""
    made = warning.early(pod(grace), options)
    assert made.directive == directive
    assert (made.plan["end_after"], made.plan["signal"], made.plan["signal_after"]) == plan


@pytest.mark.parametrize(
    ("grace", "time", "directive", "not_before"),
    [
        (30, "60", "B:50@45", None),
        (30, "4", "B:50@45", None),
        (30, "3", "B:50@45", 135.0),
        (30, "2", "B:50@45", 75.0),
        # Slurm may warn when half a minute is over, or ten seconds.
        (30, "1", "B:50@20", 30.0),
        (1, "1", "B:50@16", 44.0),
        (600, "20", "B:50@600", 600.0),
        (600, "10", "B:50@300", 300.0),
        (600, "1", "B:50@20", 30.0),
        # To Slurm a part of a minute is a minute, and no minute is no limit.
        (30, "0:30", "B:50@20", 30.0),
        (30, "0", "B:50@45", None),
    ],
)
def test_a_short_limit_is_warned_of_too_and_the_pod_has_half_of_it(
    grace: int, time: str, directive: str, not_before: float | None
) -> None:
    """However early Slurm warns, the pod's end begins its grace before the limit, or when half of that is over."""
    made = warning.early(pod(grace), {"time": time})
    assert made.directive == directive
    assert made.plan["end_after"] == 0.0
    assert made.plan.get("not_before") == not_before


@pytest.mark.parametrize(
    ("grace", "options", "text"),
    [
        (30, {}, None),
        (30, {"time": "1"}, None),
        (600, {"time": "20"}, None),
        (600, {"time": "19"}, "reaches the limit (00:19:00) has 570 s to end, half of it"),
        (100_000, {}, "reaches the limit has 65535 s to end, since Slurm warns no earlier"),
        (100_000, {"time": "9-0"}, "(9-00:00:00) has 65535 s to end, since Slurm warns no earlier"),
    ],
)
def test_a_grace_that_cannot_be_had_is_told(grace: int, options: dict[str, str | None], text: str | None) -> None:
    """It is more than half of the limit, or than Slurm can count."""
    told = warning.shortened(pod(grace), options)
    assert (told is None) == (text is None)
    assert text is None or (told is not None and text in told)


@pytest.mark.parametrize(
    ("longest", "default", "partition", "directive"),
    [
        ("infinite", "0:01:00", None, "B:50@20"),
        ("0:10:00", "n/a", None, "B:50@45"),
        ("0:01:00", "n/a", "main", "B:50@20"),
        ("infinite", "n/a", None, "B:50@45"),
        ("0:01:00", "n/a", "hidden", "B:50@45"),
    ],
)
def test_a_job_that_names_no_limit_has_its_partition_s(
    longest: str, default: str, partition: str | None, directive: str
) -> None:
    """A warning that comes before the job's script listens would end the job at once."""
    row = ("c1", "main", "main*", longest, default, "idle", "8", "16000", "(null)")
    capacity = parse.capacity(parse.UNIT.join(row) + parse.RECORD + "\n")
    assert warning.early(pod(), {"partition": partition}, capacity).directive == directive


@pytest.mark.parametrize("longest", ["1-0", "0"])
def test_a_limit_that_slurm_may_lower_counts_as_low(longest: str) -> None:
    """Else the warning of a pod that got a minute would be due at once, and end it."""
    made = warning.early(pod(), {"time": longest, "time-min": "1"})
    assert (made.directive, made.plan.get("not_before")) == ("B:50@20", 30.0)
    made = warning.early(pod(), {"time": longest, "time-min": "60"})
    assert (made.directive, made.plan.get("not_before")) == ("B:50@45", None)


def test_the_script_hands_on_what_was_asked_for() -> None:
    """Our own signals always, the user's if there is one."""
    assert warning.early(pod(), {}).signals == [jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL]
    assert warning.early(pod(), {"signal": "USR1"}).signals[2:] == [10]
