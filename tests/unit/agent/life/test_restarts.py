"""When a container starts again, and how long it waits."""

from __future__ import annotations

import pytest

from hpk.agent.life import restarts


@pytest.mark.parametrize(
    ("policy", "exit_code", "is_init", "again"),
    [
        ("Never", 1, False, False),
        ("Never", 0, False, False),
        ("OnFailure", 1, False, True),
        ("OnFailure", 0, False, False),
        ("Always", 0, False, True),
        ("Always", 3, False, True),
        ("Always", 0, True, False),
        ("Always", 1, True, True),
        ("Never", 1, True, False),
    ],
)
def test_the_policy_decides(policy: str, exit_code: int, is_init: bool, again: bool) -> None:  # noqa: FBT001
    """Never means never, OnFailure failures only, and an init container that succeeded is done."""
    assert restarts.should_restart(policy, exit_code=exit_code, is_init=is_init) is again


def test_pauses_grow_as_the_kubelet_s() -> None:
    """The first restart is immediate, then 10 s, doubled to 300 s."""
    back_off, now, pauses = restarts.BackOff(), 1000.0, []
    for _ in range(8):
        pauses.append(back_off.pause_seconds(finished_at=now))
        now += pauses[-1]
        back_off.restarted(at=now)
        now += 1
    assert pauses == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_long_healthy_run_starts_the_pauses_anew() -> None:
    """After ten minutes without an end, the next restart is immediate again."""
    back_off = restarts.BackOff()
    back_off.restarted(at=0)
    back_off.restarted(at=10)
    assert back_off.pause_seconds(finished_at=600) == 20
    assert back_off.pause_seconds(finished_at=611) == 0


@pytest.mark.parametrize(("seconds", "text"), [(10, "10s"), (80, "1m20s"), (300, "5m0s")])
def test_durations_read_as_go_s(seconds: float, text: str) -> None:
    """The kubelet's messages are Go's, and tools match them."""
    assert restarts.duration(seconds) == text
