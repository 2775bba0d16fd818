"""A copy of etcd's data directory on the shared file system: what is in it, and how it is made whole after a crash.

::

    member/wal/*.wal        the log, copied frame by frame as etcd writes it
    member/snap/db          the database as it was at some time; all that came later is in the log
    member/snap/next-<n>    a newer one, on its way to take its place: whole, or the pages that differ
    member/snap/rebase.json which, and what must be true of the log before it may (see below)

The log has records of snapshots now and then: "the database has all up to here".  etcd does not start from a database
that is older than the last of them, nor rightly from one that is newer than the log's end.  So a copy stops before
such a record (``held``), brings a new database beside the old one, says to which place the log must reach for it
(``needed``), copies the log that far, and only then lets the new database take the old one's place.  A crash between
any two of these steps leaves one of two things that fit: the old database and the log up to ``held``, or the new one
and the log up to ``needed`` at least.  Pages are written into the old database itself, once the log has reached
``needed``; until all of them are there the patch stays, and is applied again.
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
"""A place in the log: the file's name and an offset.  Names are numbers of fixed width, so positions compare."""


@dataclass(frozen=True)
class Rebase:
    """A database on its way into the copy.

    Attributes:
        name: Of its file.
        held: Where the log ends that the old database goes with.
        needed: Where the log must reach before this one may take its place.
        is_patch: Whether the file holds only the pages that differ (:mod:`hpk.controlplane.pages`).
    """

    name: str
    held: Position
    needed: Position
    is_patch: bool = False


@dataclass(frozen=True)
class DataDirectory:
    """Paths in a data directory of etcd's, or in a copy of one."""

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
        """Names the database that shall take its place, and says what must be true before it does."""
        return self.database.with_name("rebase.json")

    def next_databases(self) -> list[Path]:
        """Databases on their way, and what is left of such."""
        return list(self.database.parent.glob("next-*"))

    def log_names(self) -> list[str]:
        """The log's files, the oldest first; empty if there is no log yet."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.log) if name.endswith(".wal"))  # noqa: PTH208 - names
        return []

    def make(self) -> None:
        """Make its directories, 0700."""
        jobdir.make_directory(str(self.log))
        jobdir.make_directory(str(self.database.parent))


def choose(rebase: Rebase | None, *, end: Position) -> Position | None:
    """Of a copy whose log reaches to ``end``: where to cut the log, or None to let the new database in; pure."""
    if rebase is None:
        return end
    return None if end >= rebase.needed else min(end, rebase.held)


def settle(copy: DataDirectory) -> Mapping[str, int]:
    """Make a copy whole after whatever happened to it; the sound length of each file of its log.  Idempotent.

    Raises:
        OSError: The file system refused.
    """
    ends = {name: wal.sound_end(_read(copy.log / name)) for name in copy.log_names()}
    last = max(ends.items(), default=("", 0))
    rebase = _read_rebase(copy)
    cut = choose(rebase, end=last)
    if cut is None:
        assert rebase is not None
        with contextlib.suppress(FileNotFoundError):  # it has taken its place already
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
    """Let a next database take the old one's place.

    Raises:
        OSError: The file system refused; do it again before the copy is used or changed.
    """
    path = copy.database.with_name(rebase.name)
    if rebase.is_patch:
        pages.apply(path, copy.database)
    else:
        path.rename(copy.database)


def fetch(source: DataDirectory, target: DataDirectory, *, ends: Mapping[str, int]) -> None:
    """Copy a settled data directory to an empty one, without what lies behind the log's end."""
    target.make()
    if source.database.exists():
        shutil.copyfile(source.database, target.database)
        target.database.chmod(0o600)
    for name, end in ends.items():
        with (source.log / name).open("rb") as file:
            jobdir.write_bytes(
                str(target.log / name), file.read(end), is_durable=False
            )  # a disk that goes with the node


def write_rebase(copy: DataDirectory, rebase: Rebase) -> None:
    """Say that a next database is whole, and what it needs."""
    # Durable: should the power fail, the log that follows must not be there without it.
    jobdir.write_json(str(copy.rebase), asdict(rebase))


def write_synced(path: Path, content: bytes, *, offset: int = 0) -> None:
    """Write into a file and return when it is on the disk of whoever keeps it."""
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
    """Cut what lies behind the end, unless it is the zeros that etcd itself puts there."""
    with path.open("r+b") as file:
        file.seek(end)
        if any(file.read(_WORD_BYTES)):
            file.truncate(end)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return wal.read(file)[0]
