"""The copy of etcd's data, against an etcd that is played by files."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import pytest
import structlog.testing

from hpk import errors
from hpk.controlplane import datadir, mirror, pages
from tests import background
from tests.fakes import etcdlog

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.virtual_time

FIRST, SECOND, THIRD = (f"{number:016x}-{number * 5000:016x}.wal" for number in range(3))


class Etcd:
    """Writes its log as etcd does, and hands out a database that says how far it reaches."""

    def __init__(self, directory: Path) -> None:
        self.node = datadir.DataDirectory(directory / "node")
        self.copy = datadir.DataDirectory(directory / "copy")
        self.is_ours = True
        self.saves = 0
        self.told: list[str] = []
        self.news = asyncio.Event()
        self.logs = {FIRST: etcdlog.Log()}
        self.mirror = mirror.Mirror(
            self.node,
            self.copy,
            save=self.save,
            is_ours=lambda: self.is_ours,
            tell=self._tell,
        )
        self.mirror.begin(datadir.settle(self.copy))
        self.write()

    def _tell(self, why: str) -> None:
        self.told.append(why)
        self.news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Copy until it holds; after each step the mirror tells whether it could copy."""
        async with asyncio.TaskGroup() as group:
            running = group.create_task(self.mirror.run())
            while not holds():
                self.news.clear()
                await self.news.wait()
            running.cancel()

    @property
    def last(self) -> etcdlog.Log:
        return self.logs[max(self.logs)]

    def write(self) -> None:
        for name, log in self.logs.items():
            (self.node.log / name).write_bytes(log.content + bytes(8192))

    def cut(self, name: str) -> None:
        """Begin a new file of the log."""
        self.logs[name] = etcdlog.Log(self.last.crc)
        self.write()

    async def save(self, path: Path) -> None:
        self.saves += 1
        await asyncio.to_thread(path.write_bytes, b"database %d" % self.saves)

    def copied(self) -> dict[str, bytes]:
        """The copy's log, or {} while it changes."""
        try:
            return {name: (self.copy.log / name).read_bytes() for name in self.copy.log_names()}
        except FileNotFoundError:
            return {}

    def is_copied(self) -> bool:
        is_settled = not self.copy.rebase.exists() and not self.copy.next_databases()
        return is_settled and self.copied() == {name: log.content for name, log in self.logs.items()}


@pytest.fixture(name="etcd")
def _etcd(tmp_path: Path) -> Etcd:
    return Etcd(tmp_path)


async def until_copied(etcd: Etcd) -> None:
    """Run the copying until the copy's log is the node's."""
    await etcd.until(etcd.is_copied)


async def test_what_etcd_writes_is_copied(etcd: Etcd) -> None:
    """Frame by frame, without the zeros behind; a start from the copy has it all."""
    await until_copied(etcd)
    etcd.last.entry(b"one").entry(b"two" * 200_000)
    etcd.write()
    await until_copied(etcd)
    assert datadir.settle(etcd.copy) == {FIRST: len(etcd.last.content)}
    assert etcd.saves == 0


async def test_values_of_zeros_are_no_end(etcd: Etcd) -> None:
    """What was read may end amid a record, with zeros that belong to it."""
    etcd.last.entry(b"\1" + bytes(1 << 20)).entry(b"after")
    etcd.write()
    await until_copied(etcd)


async def test_a_frame_that_was_read_half_written_is_copied_again(etcd: Etcd) -> None:
    """Its length came first, its data a moment later."""
    etcd.last.entry(b"one" * 100)
    whole = etcd.last.content
    (etcd.node.log / FIRST).write_bytes(whole[:-100] + bytes(8192))
    assert etcd.mirror._step()
    assert etcd.copied()[FIRST] != whole
    etcd.write()
    await until_copied(etcd)


async def test_the_log_waits_for_the_database_that_it_needs(etcd: Etcd) -> None:
    """No moment of the copy has a record of a snapshot and an older database."""
    etcd.last.entry(b"one")
    held = len(etcd.last.content)
    etcd.last.snapshot(5000).entry(b"two")
    etcd.write()
    assert not etcd.mirror._step()
    assert len(etcd.copied()[FIRST]) == held
    assert not etcd.copy.database.exists()
    await until_copied(etcd)
    assert etcd.copy.database.read_bytes() == b"database 1"
    assert etcd.copy.database.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in etcd.copy.database.parent.iterdir()) == ["db"]
    assert etcd.mirror._step()  # it is not asked for again


async def test_files_that_etcd_drops_go_with_a_newer_database(etcd: Etcd) -> None:
    """The copy does not grow for ever."""
    etcd.last.entry(b"one").snapshot(5000)
    etcd.cut(SECOND)
    await until_copied(etcd)
    (etcd.node.log / FIRST).unlink()
    del etcd.logs[FIRST]
    await until_copied(etcd)
    assert etcd.copy.log_names() == [SECOND]
    assert etcd.saves == 2


async def test_what_was_dropped_before_it_was_copied_leaves_no_gap(etcd: Etcd) -> None:
    """After a long trouble of the file system the log is copied anew, with a database that needs no more."""
    await until_copied(etcd)
    etcd.last.entry(b"never copied")
    etcd.cut(SECOND)
    etcd.last.snapshot(5000)
    etcd.cut(THIRD)
    del etcd.logs[FIRST]
    (etcd.node.log / FIRST).unlink()
    assert not etcd.mirror._step()
    assert etcd.copy.log_names() == [FIRST]
    await until_copied(etcd)
    assert etcd.copy.database.read_bytes() == b"database 1"


async def test_a_full_file_system_is_said_and_borne(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """etcd goes on; the log says what would help, once; when there is room again all is copied."""
    real = datadir.write_synced
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def full(*_: object, **__: object) -> None:
        loop.call_soon_threadsafe(refused.set)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(datadir, "write_synced", full)
    etcd.last.entry(b"one")
    etcd.write()
    with structlog.testing.capture_logs() as told:
        running = asyncio.create_task(etcd.mirror.run())
        for _ in range(3):
            refused.clear()
            await asyncio.wait_for(refused.wait(), 60)
        await background.end(running)
    assert [entry["log_level"] for entry in told] == ["warning"]
    assert "quota exceeded; free some space" in told[0]["error"]
    assert "have not been copied to" in etcd.told[-1]
    monkeypatch.setattr(datadir, "write_synced", real)
    await until_copied(etcd)
    await etcd.until(lambda: not etcd.told[-1])


async def test_a_crash_amid_a_new_database_leaves_a_copy_that_fits(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log could not be copied as far as the new database needs: the next start takes the old one."""
    await until_copied(etcd)
    before = etcd.copied()
    etcd.last.snapshot(5000).entry(b"one")
    etcd.cut(SECOND)
    real = datadir.write_synced

    def only_first(path: Path, content: bytes, *, offset: int = 0) -> None:
        if path.name != FIRST:
            raise OSError(errno.ENOSPC, "full")
        real(path, content, offset=offset)

    monkeypatch.setattr(datadir, "write_synced", only_first)
    for _ in range(2):  # a second attempt does not forget what the old database goes with
        with pytest.raises(OSError, match="full"):
            await etcd.mirror._rebase()
    assert datadir.settle(etcd.copy) == {FIRST: len(before[FIRST])}
    assert etcd.copied() == before


async def test_the_end_copies_the_database(etcd: Etcd) -> None:
    """An orderly end leaves nothing to be read again from the log."""
    etcd.last.entry(b"one")
    etcd.write()
    etcd.node.database.write_bytes(b"whole")
    etcd.mirror.finish()
    assert etcd.copy.database.read_bytes() == b"whole"
    assert etcd.copied() == {FIRST: etcd.last.content}


def database(*fills: int) -> bytes:
    """A database of pages, each full of one byte."""
    return b"".join(bytes([fill]) * pages.PAGE_BYTES for fill in fills)


def test_what_is_remembered_of_a_page_is_sixteen_bytes(tmp_path: Path) -> None:
    """The largest database has half a million; as objects of their own they took four times as much."""
    (tmp_path / "db").write_bytes(database(1, 2, 3) + b"x")
    found = pages.prints(tmp_path / "db")
    assert (len(found), pages.count(found)) == (4 * 16, 4)
    assert pages.changed(found[:32] + bytes(16), found) == [2, 3]


async def publish(etcd: Etcd, content: bytes) -> None:
    """Have the database copied."""

    async def save(path: Path) -> None:
        await asyncio.to_thread(path.write_bytes, content)

    etcd.mirror._save = save
    etcd.write()
    await etcd.mirror._rebase()


async def test_only_changed_pages_are_written(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is what the database is, whether that grew or shrank; what goes to the home is what changed."""
    written: list[list[int]] = []
    real = pages.write

    def write(source: Path, numbers: list[int], target: Path) -> None:
        written.append(numbers)
        real(source, numbers, target)

    monkeypatch.setattr(pages, "write", write)
    for content in (
        database(*range(20)),
        database(0, 99, *range(2, 20)),
        database(*range(20), 7, 8),
        database(*range(15)),
        database(*range(100, 130)),
    ):
        await publish(etcd, content)
        assert etcd.copy.database.read_bytes() == content
        assert sorted(path.name for path in etcd.copy.database.parent.iterdir()) == ["db"]
    assert written == [[1], [1, 20, 21], []]


@pytest.mark.parametrize("step", ["apply", "unlink"])
async def test_a_crash_amid_changed_pages_leaves_a_copy_that_fits(
    etcd: Etcd, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Half of them are in the old database: the patch is there, and the next start applies it."""
    await publish(etcd, database(*range(20)))
    real = pages.apply

    def torn(patch: Path, target: Path) -> None:
        if step == "apply":
            with target.open("r+b") as file:
                file.write(b"torn" * 100)
        else:
            real(patch, target)
        raise OSError(errno.EIO, "gone")

    monkeypatch.setattr(pages, "apply", torn)
    changed = database(99, *range(1, 20))
    with pytest.raises(OSError, match="gone"):
        await publish(etcd, changed)
    monkeypatch.setattr(pages, "apply", real)
    datadir.settle(etcd.copy)
    assert etcd.copy.database.read_bytes() == changed
    assert sorted(path.name for path in etcd.copy.database.parent.iterdir()) == ["db"]


async def test_pages_that_were_refused_come_before_newer_ones(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that changed and changed back would else keep what half an attempt has left."""
    first = database(*range(20))
    await publish(etcd, first)

    def torn(_: Path, target: Path) -> None:
        with target.open("r+b") as file:
            file.write(bytes([99]) * pages.PAGE_BYTES)
        raise OSError(errno.EIO, "gone")

    with monkeypatch.context() as patched:
        patched.setattr(pages, "apply", torn)
        with pytest.raises(OSError, match="gone"):
            await publish(etcd, database(99, *range(1, 20)))
    await publish(etcd, first)
    assert etcd.copy.database.read_bytes() == first


def test_a_torn_word_about_a_database_is_none(etcd: Etcd) -> None:
    """It is not raised at each start for ever."""
    etcd.copy.make()
    etcd.copy.rebase.write_text("")
    datadir.settle(etcd.copy)
    assert not etcd.copy.rebase.exists()


async def test_another_s_copy_is_left_alone(etcd: Etcd) -> None:
    """Who was taken over, and did not notice yet, writes nothing."""
    await until_copied(etcd)
    before = etcd.copied()
    etcd.is_ours = False
    etcd.last.entry(b"one")
    etcd.write()
    with pytest.raises(errors.Retryable, match="taken"):
        etcd.mirror._step()
    etcd.node.database.write_bytes(b"whole")
    etcd.mirror.finish()
    assert etcd.copied() == before
    assert not etcd.copy.database.exists()


async def test_copying_goes_on_where_the_last_one_stopped(etcd: Etcd, tmp_path: Path) -> None:
    """The next start brings the copy to its own disk, and appends."""
    etcd.last.entry(b"one").snapshot(5000)
    etcd.write()
    await until_copied(etcd)
    other = mirror.Mirror(
        datadir.DataDirectory(tmp_path / "other"), etcd.copy, save=etcd.save, is_ours=lambda: True, pause_seconds=0
    )
    other.begin(datadir.settle(etcd.copy))
    assert (tmp_path / "other" / "member" / "wal" / FIRST).read_bytes() == etcd.last.content
    etcd.last.entry(b"two")
    (tmp_path / "other" / "member" / "wal" / FIRST).write_bytes(etcd.last.content)
    assert other._step()
    assert etcd.copied() == {FIRST: etcd.last.content}


def test_at_most_half_a_second_is_not_copied() -> None:
    """Beside what a step takes: docs/faults.md promises it to users."""
    assert mirror.PAUSE_SECONDS <= 0.5
