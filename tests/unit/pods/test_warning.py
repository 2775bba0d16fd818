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
        # The whole limit is hardly longer than the warning, which may come a minute early.
        (30, {"time": "1"}, None, (None, None, 0.0)),
        (30, {"signal": "USR1@600"}, "B:50@600", (555.0, 10, 0.0)),
        (30, {"signal": "R:USR2@10"}, "RB:50@45", (0.0, 12, 35.0)),
        (30, {"signal": "B:USR1", "time": "2"}, "B:50@60", (None, 10, 0.0)),
        # Slurm keeps 16 bits.
        (100_000, {}, "B:50@65535", (0.0, None, 0.0)),
    ],
)
def test_one_warning_serves_the_grace_and_the_user_s_signal(
    grace: int, options: dict[str, str | None], directive: str | None, plan: tuple[float | None, int | None, float]
) -> None:
    """It comes early enough for both; the agent does each in its time."""
    made = warning.early(pod(grace), options)
    assert made.directive == directive
    assert (made.plan["end_after"], made.plan["signal"], made.plan["signal_after"]) == plan


@pytest.mark.parametrize(
    ("longest", "default", "partition", "directive"),
    [
        ("infinite", "0:01:00", None, None),
        ("0:10:00", "n/a", None, "B:50@45"),
        ("0:02:00", "n/a", "main", None),
        ("infinite", "n/a", None, "B:50@45"),
        ("0:01:00", "n/a", "hidden", "B:50@45"),
    ],
)
def test_a_job_that_names_no_limit_has_its_partition_s(
    longest: str, default: str, partition: str | None, directive: str | None
) -> None:
    """A warning that comes before the pod has begun would end it at once."""
    row = ("c1", "main", "main*", "up", longest, default, "idle", "8", "16000", "(null)", "(null)")
    capacity = parse.capacity(parse.UNIT.join(row) + parse.RECORD + "\n")
    assert warning.early(pod(), {"partition": partition}, capacity).directive == directive


def test_the_script_hands_on_what_was_asked_for() -> None:
    """Our own signals always, the user's if there is one."""
    assert warning.early(pod(), {}).signals == [jobdir.WARNING_SIGNAL, jobdir.END_SIGNAL]
    assert warning.early(pod(), {"signal": "USR1"}).signals[2:] == [10]
