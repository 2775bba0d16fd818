"""A copy of etcd's data, whatever became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk.controlplane import datadir
from tests.fakes import etcdlog

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "0000000000000000-0000000000000000.wal", "0000000000000001-0000000000001388.wal"


def copy(directory: Path, **logs: bytes) -> datadir.DataDirectory:
    """A data directory with these files of the log, and an old database."""
    made = datadir.DataDirectory(directory)
    made.make()
    made.database.write_bytes(b"old")
    for name, content in zip((FIRST, SECOND), logs.values(), strict=False):
        (made.log / name).write_bytes(content)
    return made


@pytest.mark.parametrize(
    ("end", "cut"),
    [
        ((FIRST, 100), (FIRST, 100)),  # not a frame of the rest is there: the old database's
        ((FIRST, 150), (FIRST, 100)),
        ((SECOND, 49), (FIRST, 100)),
        ((SECOND, 50), None),  # all is there: the new one
        ((SECOND, 500), None),
        ((FIRST, 80), (FIRST, 80)),
    ],
)
def test_the_database_is_the_one_that_the_log_fits(end: datadir.Position, cut: datadir.Position | None) -> None:
    """The new one only if the log reaches as far as it does; else the old one, and the log without what it lacks."""
    rebase = datadir.Rebase("next-1", held=(FIRST, 100), needed=(SECOND, 50))
    assert datadir.choose(rebase, end=end) == cut


def test_without_a_new_database_nothing_is_cut() -> None:
    """The ordinary case."""
    assert datadir.choose(None, end=(FIRST, 5)) == (FIRST, 5)


def test_a_torn_end_is_cut(tmp_path: Path) -> None:
    """etcd would refuse a last record whose checksum is wrong."""
    log = etcdlog.Log().entry(b"one")
    end = len(log.content)
    torn = log.entry(b"two" * 50).content[:-20] + b"x" * 20
    made = copy(tmp_path, first=torn)
    assert datadir.settle(made) == {FIRST: end}
    assert (made.log / FIRST).read_bytes() == torn[:end]
    assert made.database.read_bytes() == b"old"
    assert datadir.settle(made) == {FIRST: end}


def test_the_zeros_of_a_file_made_beforehand_stay(tmp_path: Path) -> None:
    """They are etcd's own, where the copy was its data directory before."""
    log = etcdlog.Log().entry(b"one").content
    made = copy(tmp_path, first=log + bytes(4096))
    assert datadir.settle(made) == {FIRST: len(log)}
    assert (made.log / FIRST).stat().st_size == len(log) + 4096


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_crash_on_the_way_to_a_new_database(tmp_path: Path, *, is_whole: bool) -> None:
    """Either all of the new or all of the old is left, and nothing of the attempt."""
    old = etcdlog.Log().entry(b"one")
    held = len(old.content)
    old.snapshot(5000)
    new = etcdlog.Log(old.crc).entry(b"two")
    made = copy(tmp_path, first=old.content, second=new.content if is_whole else new.content[:-1])
    made.database.with_name("next-3").write_bytes(b"new")
    made.database.with_name("next-2").write_bytes(b"broken off")
    datadir.write_rebase(made, datadir.Rebase("next-3", held=(FIRST, held), needed=(SECOND, len(new.content))))
    ends = datadir.settle(made)
    if is_whole:
        assert made.database.read_bytes() == b"new"
        assert ends == {FIRST: len(old.content), SECOND: len(new.content)}
    else:
        assert made.database.read_bytes() == b"old"
        assert ends == {FIRST: held}
        assert made.log_names() == [FIRST]
        assert (made.log / FIRST).stat().st_size == held
    assert sorted(path.name for path in made.database.parent.iterdir()) == ["db"]


def test_fetching_leaves_out_what_is_behind_the_end(tmp_path: Path) -> None:
    """The node's disk gets the log as far as it is sound, and the database, for nobody else to read."""
    source = copy(tmp_path / "copy", first=b"12345678" + bytes(100))
    target = datadir.DataDirectory(tmp_path / "node")
    datadir.fetch(source, target, ends={FIRST: 8})
    assert (target.log / FIRST).read_bytes() == b"12345678"
    assert target.database.read_bytes() == b"old"
    assert target.database.stat().st_mode & 0o777 == 0o600


def test_there_may_be_nothing_yet(tmp_path: Path) -> None:
    """The first start of all."""
    assert datadir.settle(datadir.DataDirectory(tmp_path / "none")) == {}
