"""DiskPressure is what a write says, not what was assumed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from hpk.node import pressure

if TYPE_CHECKING:
    from pathlib import Path


def test_where_there_is_room_nothing_is_left_behind(tmp_path: Path) -> None:
    """Also where the directory is not there yet."""
    assert pressure.measure([tmp_path, tmp_path / "not/yet"]) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_quota_that_is_met_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """At the write or at the sync, whenever the file system notices."""

    def full(*_: Any) -> int:
        raise OSError(122, os.strerror(122))

    monkeypatch.setattr(os, call, full)
    assert pressure.measure([tmp_path]) == f"nothing can be written to {tmp_path}: Disk quota exceeded"
    assert list(tmp_path.iterdir()) == []


def test_little_room_is_told_before_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In words that do not change with each byte: the node object is not written for nothing."""
    monkeypatch.setattr(pressure, "LEAST_BYTES", 1 << 62)
    assert pressure.measure([tmp_path]).endswith(f"are left in {tmp_path}")


@pytest.mark.parametrize(("number", "is_anothers"), [(30, True), (13, True), (122, False)])
def test_a_directory_that_a_site_keeps_needs_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, *, is_anothers: bool
) -> None:
    """Its images are used; a node with DiskPressure would take no pod."""

    def refuse(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    assert (pressure.measure([tmp_path], may_be_anothers=True) == "") == is_anothers
    assert pressure.measure([tmp_path])
