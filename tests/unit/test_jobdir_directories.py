"""Directories under the state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk import jobdir

if TYPE_CHECKING:
    from pathlib import Path


def test_parents_are_private_too(tmp_path: Path) -> None:
    """A directory and all parents that it needed are 0700, and making it again is fine."""
    for _ in range(2):
        jobdir.make_directory(str(tmp_path / "a" / "b" / "c"))
    assert {path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")} == {0o700}


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    """A file is no directory."""
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        jobdir.make_directory(str(tmp_path / "a"))


@pytest.mark.parametrize("path", ["/proc/nosuch/a", "gone/a"])
def test_where_no_directory_can_be_made_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """In /proc, below an automounter, in a directory that was removed: the kernel says "not found" each time."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    with pytest.raises(FileNotFoundError):
        jobdir.make_directory(path)
