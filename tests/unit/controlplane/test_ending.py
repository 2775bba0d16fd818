"""How the control plane ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.controlplane import ending

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (errors.Fatal("in use"), 78, "in use"),
        (errors.SlurmUnavailable("away"), 75, "away"),
        (BaseExceptionGroup("g", [errors.Retryable("no room"), KeyboardInterrupt()]), 75, "no room"),
        (ExceptionGroup("g", [errors.Retryable("a"), ExceptionGroup("h", [errors.Fatal("b")])]), 78, "a; b"),
        (ExceptionGroup("g", [errors.Fatal("a"), ValueError("x")]), 70, "ValueError: x"),
        (MemoryError(), 70, "MemoryError"),
        (KeyboardInterrupt(), 0, "interrupted"),
    ],
)
def test_an_error_has_an_exit_code_and_words(error: BaseException, code: int, words: str) -> None:
    """hpk.sbatch goes by the code, people by the words."""
    end = ending.of(error)
    assert end.code == code
    assert words in end.reason


def test_the_ending_is_told_later(tmp_path: Path) -> None:
    """By another program; a file that is torn or missing tells nothing."""
    assert ending.told(tmp_path) == ""
    ending.record(tmp_path, ending.Ending(75, "no room"), job_id="7", at=0)
    assert ending.told(tmp_path).startswith("job 7 at ")
    assert ending.told(tmp_path).endswith(": no room")
    (tmp_path / ending.FILE).write_text("{")
    assert ending.told(tmp_path) == ""
    ending.record(tmp_path / "nowhere", ending.Ending(75, "no room"), job_id="7", at=0)
