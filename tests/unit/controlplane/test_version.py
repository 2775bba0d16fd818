"""The version mark of a state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.controlplane import version

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("theirs", "ours"), [("", "0.1.0"), ("0.1.0", "0.1.0"), ("0.9.1", "0.10.0"), ("1.2.3", "1.2.0")]
)
def test_a_directory_that_is_not_newer_is_used_and_marked(tmp_path: Path, theirs: str, ours: str) -> None:
    """Also one from before there was a mark; a patch version may go back."""
    if theirs:
        version.mark(tmp_path, ours=theirs)
    version.mark(tmp_path, ours=ours)
    assert version.recorded(tmp_path) == ours


def test_an_older_program_is_refused(tmp_path: Path) -> None:
    """By name, and the mark stays."""
    version.mark(tmp_path, ours="0.10.0")
    with pytest.raises(errors.Fatal, match=r"HPK 0\.10\.0 has written it, and this is HPK 0\.9\.4.*HPK_IMAGE"):
        version.mark(tmp_path, ours="0.9.4")
    assert version.recorded(tmp_path) == "0.10.0"


def test_a_torn_mark_is_no_mark(tmp_path: Path) -> None:
    """After a power cut."""
    (tmp_path / version.FILE).write_text("")
    version.mark(tmp_path, ours="0.1.0")
    assert version.recorded(tmp_path) == "0.1.0"
