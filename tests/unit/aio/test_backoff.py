"""Pauses between attempts."""

from __future__ import annotations

from hpk.aio import backoff


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def of(**policy: float) -> tuple[backoff.Backoff, Clock]:
    """A back-off without chance."""
    clock = Clock()
    return backoff.Backoff(backoff.BackoffPolicy(**policy), chance=lambda: 0.0, clock=clock), clock


def test_pauses_grow_to_the_cap() -> None:
    """Each pause is longer by the factor, and none is longer than the cap."""
    pauses, _ = of(first_seconds=1, factor=2, cap_seconds=5)
    assert [pauses.failed() for _ in range(5)] == [1, 2, 4, 5, 5]
    assert pauses.failures == 5


def test_jitter_only_adds() -> None:
    """Chance makes a pause longer by at most the share, never shorter."""
    pauses = backoff.Backoff(backoff.BackoffPolicy(first_seconds=10, jitter=0.1), chance=lambda: 1.0)
    assert pauses.failed() == 11


def test_a_healthy_time_starts_over() -> None:
    """A failure after a long good run counts as the first."""
    pauses, clock = of(first_seconds=1, healthy_seconds=60)
    for _ in range(3):
        pauses.started()
        pauses.failed()
    pauses.started()
    clock.now += 60
    assert pauses.failed() == 1
    assert pauses.failures == 1


def test_success_starts_over() -> None:
    """What succeeded has no failures."""
    pauses, _ = of(first_seconds=1)
    pauses.failed()
    pauses.succeeded()
    assert (pauses.failures, pauses.failed()) == (0, 1)


def test_never_overflows() -> None:
    """A service that fails for months still gets a pause."""
    pauses, _ = of(cap_seconds=30)
    for _ in range(5000):
        last = pauses.failed()
    assert last == 30
