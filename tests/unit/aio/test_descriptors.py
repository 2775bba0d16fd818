"""The limit of open files."""

from __future__ import annotations

import resource

import pytest

from hpk.aio import descriptors


def test_the_soft_limit_becomes_the_hard_one() -> None:
    """As a job has it whose login shell says 256."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        assert descriptors.raise_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        (4096, ""),
        (resource.RLIM_INFINITY, ""),
        (1024, "1000 pods (HPK_MAX_PODS) need 1512: have your site raise the limit, or set HPK_MAX_PODS=512"),
        (256, "have your site raise the limit"),
    ],
)
def test_a_limit_that_is_too_low_is_named(hard: int, words: str) -> None:
    """With what would help."""
    told = descriptors.shortage(hard, max_pods=1000)
    assert told.endswith(words)
    assert bool(told) == bool(words)
