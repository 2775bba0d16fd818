"""A copy of etcd's data directory on the shared file system: its contents, and its recovery after a crash.

::

    member/wal/*.wal        the log, copied frame by frame as etcd writes it
    member/snap/db          the database at some time; all later changes are in the log
    member/snap/next-<n>    a newer database on its way: whole, or only the pages that differ
    member/snap/rebase.json the newer database's name, and what the log must contain first (see below)

The log contains snapshot records: "the database has everything up to here". etcd does not start from a database older
than the last of them, and not correctly from one newer than the log's end. So the copy stops before such a record
(``held``), puts a new database beside the old one, records how far the log must reach for it (``needed``), copies the
log that far, and only then replaces the old database. A crash between any two steps leaves a consistent pair: the old
database with the log up to ``held``, or the new one with the log up to at least ``needed``. A patch is written into the
old database itself, once the log has reached ``needed``; the patch file stays until all pages are written, and is
applied again after a crash.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.controlplane import pages, wal

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_WORD_BYTES = 8
Position = tuple[str, int]
"""A place in the log: file name and offset. Names are numbers of fixed width, so positions sort."""


@dataclass(frozen=True)
class Rebase:
    """A newer database on its way into the copy.

    Attributes:
        held: The log's end that matches the old database.
        needed: How far the log must reach before this database replaces the old one.
        is_patch: Whether the file holds only the pages that differ (:mod:`hpk.controlplane.pages`).
    """

    name: str
    held: Position
    needed: Position
    is_patch: bool = False


@dataclass(frozen=True)
class DataDirectory:
    """Paths in etcd's data directory, or in a copy of one."""

    root: Path

    @property
    def log(self) -> Path:
        """The directory of the write-ahead log."""
        return self.root / "member" / "wal"

    @property
    def database(self) -> Path:
        """The database."""
        return self.root / "member" / "snap" / "db"

    @property
    def rebase(self) -> Path:
        """The file that names the newer database and what it needs."""
        return self.database.with_name("rebase.json")

    def next_databases(self) -> list[Path]:
        """Return newer databases, and remains of failed attempts."""
        return list(self.database.parent.glob("next-*"))

    def log_names(self) -> list[str]:
        """Return the log's files, the oldest first; empty if there is no log yet."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.log) if name.endswith(".wal"))  # noqa: PTH208 - names
        return []

    def make(self) -> None:
        """Create the directories, 0700."""
        jobdir.make_directory(str(self.log))
        jobdir.make_directory(str(self.database.parent))


def choose(rebase: Rebase | None, *, end: Position) -> Position | None:
    """Return where to cut a copy's log that reaches ``end``, or None to install the new database. Pure."""
    if rebase is None:
        return end
    return None if end >= rebase.needed else min(end, rebase.held)


def settle(copy: DataDirectory) -> Mapping[str, int]:
    """Recover a copy after a crash, and return the valid length of each log file. Idempotent.

    Raises:
        OSError: The file system failed.
    """
    ends = {name: wal.sound_end(_read(copy.log / name)) for name in copy.log_names()}
    last = max(ends.items(), default=("", 0))
    rebase = _read_rebase(copy)
    cut = choose(rebase, end=last)
    if cut is None:
        assert rebase is not None
        with contextlib.suppress(FileNotFoundError):  # it was installed before
            put_in_place(copy, rebase)
    else:
        for name in [name for name in ends if name > cut[0]]:
            (copy.log / name).unlink()
            del ends[name]
        if cut[0] in ends:
            ends[cut[0]] = cut[1]
    if ends:
        _cut_garbage(copy.log / max(ends), ends[max(ends)])
    copy.rebase.unlink(missing_ok=True)
    for path in copy.next_databases():
        path.unlink()
    return ends


def put_in_place(copy: DataDirectory, rebase: Rebase) -> None:
    """Replace the old database by the next one.

    Raises:
        OSError: The file system failed; repeat before the copy is used or changed.
    """
    path = copy.database.with_name(rebase.name)
    if rebase.is_patch:
        pages.apply(path, copy.database)
    else:
        path.rename(copy.database)


def fetch(source: DataDirectory, target: DataDirectory, *, ends: Mapping[str, int]) -> None:
    """Copy a recovered data directory to an empty one, without bytes beyond the log's end."""
    target.make()
    if source.database.exists():
        shutil.copyfile(source.database, target.database)
        target.database.chmod(0o600)
    for name, end in ends.items():
        with (source.log / name).open("rb") as file:
            jobdir.write_bytes(
                str(target.log / name), file.read(end), is_durable=False
            )  # a disk whose data end with the node


def write_rebase(copy: DataDirectory, rebase: Rebase) -> None:
    """Record that a next database is complete, and what it needs."""
    # Durable: after a power failure, the log that follows must not exist without this record.
    jobdir.write_json(str(copy.rebase), asdict(rebase))


def write_synced(path: Path, content: bytes, *, offset: int = 0) -> None:
    """Write into a file and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(content)
        while view:
            count = os.pwrite(descriptor, view, offset)
            view, offset = view[count:], offset + count
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_rebase(copy: DataDirectory) -> Rebase | None:
    found = jobdir.read_json(str(copy.rebase))
    if found is None:
        return None
    name = str(found["name"])
    held, needed = ((str(file), int(offset)) for file, offset in (found["held"], found["needed"]))
    return Rebase(name, held, needed, is_patch=bool(found.get("is_patch")))


def _cut_garbage(path: Path, end: int) -> None:
    """Truncate the file at `end`, unless etcd's own padding of zeros follows."""
    with path.open("r+b") as file:
        file.seek(end)
        if any(file.read(_WORD_BYTES)):
            file.truncate(end)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return wal.read(file)[0]
