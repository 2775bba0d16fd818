"""Certificates at their end."""

from __future__ import annotations

import datetime as dt

import pytest

from hpk import errors, pki
from hpk.controlplane import renewal
from tests import virtual

NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture(name="authority", scope="module")
def _authority() -> pki.Authority:
    """One that lasts for ten years."""
    return pki.Authority.create("kubernetes")


def test_the_shortest_life_counts(authority: pki.Authority) -> None:
    """Of the certificates, a year, or of their authority."""
    assert renewal.certificates_end([authority], now=NOW) == NOW + 365 * DAY
    later = authority.ends_at - 100 * DAY
    assert renewal.certificates_end([authority], now=later) == authority.ends_at


def test_an_authority_that_ends_before_long_is_told(authority: pki.Authority) -> None:
    """Half a year before, with its end and what to do."""
    assert renewal.trouble({"kubernetes": authority}, now=NOW) == ""
    told = renewal.trouble({"kubernetes": authority}, now=authority.ends_at - 100 * DAY)
    assert f"(kubernetes) expire on {authority.ends_at:%Y-%m-%d}" in told
    assert "hpk down" in told


def test_a_control_plane_that_lives_longer_starts_anew() -> None:
    """A week before its certificates end; hpk.sbatch starts it again, and pods run on."""

    async def lives(days: int) -> float:
        clock = virtual.running()
        with pytest.raises(errors.Retryable, match="restarts to issue new ones"):
            await renewal.until(clock.now() + renewal.BEFORE + days * DAY, clock=clock)
        return clock.monotonic()

    for days in (-1, 0, 1, 300):
        assert virtual.run(lives(days)) == pytest.approx(max(0, days) * DAY.total_seconds())
