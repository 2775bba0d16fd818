"""A pod runs in the job that comes first, and in no other."""

from __future__ import annotations

import concurrent.futures
from pathlib import Path

import pytest

from hpk.agent.boot import claim


def test_the_first_job_has_the_pod(tmp_path: Path) -> None:
    """Its name is in the file; another is told, and changes nothing."""
    path = str(tmp_path / "claim")
    claim.take(path, "17")
    with pytest.raises(claim.Taken, match=r"Job 17 has run this pod.*job 18"):
        claim.take(path, "18")
    assert Path(path).read_text() == "17"
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_of_many_at_once_one_has_it(tmp_path: Path) -> None:
    """However close together they come."""

    def won(number: int) -> bool:
        try:
            claim.take(str(tmp_path / "claim"), str(number))
        except claim.Taken:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(won, range(64))) == 1


def test_a_claim_without_a_name_is_one(tmp_path: Path) -> None:
    """A job that was killed in the middle may have gone on to run the pod, for all that can be known."""
    (tmp_path / "claim").touch()
    with pytest.raises(claim.Taken, match="another"):
        claim.take(str(tmp_path / "claim"), "18")
