"""A continuous copy of etcd's data in the state directory, while etcd runs on this node's disk.

etcd appends each change to its log before it answers. The mirror copies the log every half second, so a node failure
loses at most the changes since. The database itself is copied when the log requires it
(:mod:`hpk.controlplane.datadir`) and at an orderly end; if the copy has one already, only changed pages are copied.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from hpk import errors
from hpk.controlplane import datadir, pages, placement, wal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

PAUSE_SECONDS = 0.5
"""Pause between copies of the log: the most that is lost."""
MOST_CHANGED = 0.5
"""If more than this share of the pages has changed, the whole database is copied."""
PATIENCE_SECONDS = 10.0
"""Interval at which a persistent failure is reported."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True)
class _Copied:
    """How much of a log file has been copied.

    The last frame is copied again if it changes: etcd may have been writing it while we read.
    """

    last_start: int = 0
    end: int = 0
    last: bytes = b""


class Mirror:
    """etcd's data on this node, and their copy.

    Args:
        node: The data directory in which etcd runs.
        copy: The copy in the state directory; :func:`datadir.settle` has been called.
        save: Writes a consistent copy of the running etcd's database to a path.
        is_ours: Whether we still hold the state directory; a copy that another control plane has taken over is not
            written.
        tell: Receives the reason why copying fails; empty when it works again.
        pause_seconds: Pause between copies.
    """

    def __init__(
        self,
        node: datadir.DataDirectory,
        copy: datadir.DataDirectory,
        *,
        save: Callable[[Path], Awaitable[None]],
        is_ours: Callable[[], bool],
        tell: Callable[[str], None] = lambda _: None,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._node, self._copy, self._save, self._is_ours = node, copy, save, is_ours
        self._tell = tell
        self._pause_seconds = pause_seconds
        self._copied: dict[str, _Copied] = {}
        self._covered = 0
        """A lower bound of the index that the copy's database reaches."""
        self._held: datadir.Position | None = None
        """The copy's log end when the first next database was prepared; it matches the old database."""
        self._prints = b""
        """Digests of the pages of the copy's database; empty if there is none."""
        self._pending: tuple[datadir.Rebase, bytes] | None = None
        """A next database whose log is complete, and that may be installed in part."""
        self._attempts = itertools.count()
        self._busy = threading.Lock()  # a thread left behind by a cancelled task may still write
        self._copied_at = time.monotonic()
        self._told_at: float | None = None

    @property
    def behind_seconds(self) -> float:
        """The time since the last complete copy: the most that would be lost now."""
        return time.monotonic() - self._copied_at

    def begin(self, ends: Mapping[str, int]) -> None:
        """Fetch the copy's data to this node, before etcd starts.

        `ends` is the result of :func:`datadir.settle`.

        Raises:
            errors.Retryable: This node lacks space.
        """
        try:
            datadir.fetch(self._copy, self._node, ends=ends)
        except OSError as error:
            raise errors.Retryable(
                f"Cannot copy etcd's data from {self._copy.root} to {self._node.root}: {error.strerror}.  TMPDIR must "
                "be on a disk of this node with room for them"
            ) from error
        self._copy.make()
        if self._node.database.exists():
            self._prints = pages.prints(self._node.database)
        for name, end in ends.items():
            content, found = self._read(self._node.log / name, start=0)
            self._covered = max([self._covered, *(frame.snapshot_index for frame in found)])
            if found:
                self._copied[name] = _Copied(found[-1].start, end, content[found[-1].start : end])

    async def run(self) -> None:
        """Copy until cancelled; log file system errors and retry."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            started_at = time.monotonic()
            try:
                is_whole = await asyncio.to_thread(self._step)
                if not is_whole or await asyncio.to_thread(self._has_too_much):
                    await self._rebase()
            except (OSError, errors.Retryable) as error:
                self._complain(error)
            else:
                self._copied_at, self._told_at = started_at, None
                self._tell("")

    def finish(self) -> None:
        """Copy everything after etcd has ended.

        Raises:
            OSError: The file system failed; the copy is as of the last successful step.
        """
        with self._busy:
            if not self._is_ours():
                logger.warning("Not copying the last of etcd's data: another control plane has the state directory")
            elif self._node.database.exists():
                self._publish(self._node.database, names=self._node.log_names())

    def _step(self) -> bool:
        with self._busy:
            return self._ship()

    def _check(self) -> None:
        if not self._is_ours():
            raise errors.Retryable("another control plane has taken the state directory over")

    def _ship(self, *, is_held: bool = True) -> bool:
        """Copy the log's new frames. Return False if the rest waits for a newer database."""
        names = self._node.log_names()
        if is_held and self._copied and max(self._copied) not in names:
            return False  # etcd dropped a file before it was copied
        for name in names:
            copied = self._copied.get(name, _Copied())
            content, found = self._read(self._node.log / name, start=copied.last_start)
            waiting = [frame for frame in found if frame.snapshot_index > self._covered]
            if is_held and waiting:
                found = [frame for frame in found if frame.end <= waiting[0].start]
            if found:
                last = found[-1]
                new = _Copied(
                    copied.last_start + last.start, copied.last_start + last.end, content[last.start : last.end]
                )
                if new != copied:
                    self._check()
                    datadir.write_synced(self._copy.log / name, content[: last.end], offset=copied.last_start)
                    self._copied[name] = new
            if is_held and waiting:
                return False
            self._covered = max([self._covered, *(frame.snapshot_index for frame in waiting)])
        return True

    @staticmethod
    def _read(path: Path, *, start: int) -> tuple[bytes, Sequence[wal.Frame]]:
        """Return the file's written content from `start` on, and its frames."""
        try:
            file = path.open("rb")
        except FileNotFoundError:  # etcd dropped it since the files were listed
            return b"", []
        with file:
            file.seek(start)
            return wal.read(file)

    def _has_too_much(self) -> bool:
        """Return whether the copy's log has files that etcd has dropped; a newer database makes them obsolete."""
        return bool(set(self._copy.log_names()) - set(self._node.log_names()))

    async def _rebase(self) -> None:
        """Update the copy's database."""
        names = self._node.log_names()
        saved = self._node.root / "saved.db"
        try:
            await self._save(saved)
            await asyncio.to_thread(self._publish_saved, saved, names)
        finally:
            saved.unlink(missing_ok=True)

    def _publish_saved(self, saved: Path, names: Sequence[str]) -> None:
        with self._busy:
            self._check()
            self._publish(saved, names=names)

    def _publish(self, database: Path, *, names: Sequence[str]) -> None:
        """Replace the copy's database by this one.

        All its contents are in this node's log by now. `names` are the log files at the time it was saved; older ones
        are not needed.
        """
        self._copy.make()
        self._check()
        self._put_in_place()
        target = self._copy.database.with_name(f"next-{next(self._attempts)}")
        if self._held is None:
            self._held = max(((name, one.end) for name, one in self._copied.items()), default=("", 0))
        prints = pages.prints(database)
        try:
            is_patch = self._write_next(database, prints, target)
            rebase = datadir.Rebase(target.name, self._held, needed=self._end(), is_patch=is_patch)
            datadir.write_rebase(self._copy, rebase)
        except OSError:
            target.unlink(missing_ok=True)
            raise
        self._ship(is_held=False)
        self._pending = (rebase, prints)
        self._put_in_place()
        self._held = None
        for path in self._copy.next_databases():  # remains of attempts that failed later than this point
            path.unlink()
        for name in set(self._copy.log_names()) - set(names) - set(self._node.log_names()):
            (self._copy.log / name).unlink()
            self._copied.pop(name, None)

    def _write_next(self, database: Path, prints: bytes, target: Path) -> bool:
        """Write the new database, or a patch if few pages differ, beside the old one. Return whether it is a patch."""
        numbers = pages.changed(self._prints, prints)
        if self._prints and self._copy.database.exists() and len(numbers) <= pages.count(prints) * MOST_CHANGED:
            pages.write(database, numbers, target)
            return True
        with database.open("rb") as source, target.open("wb") as file:
            target.chmod(0o600)
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        return False

    def _put_in_place(self) -> None:
        """Install the pending database, if any. A failed attempt is repeated before all else."""
        if self._pending is None:
            return
        rebase, prints = self._pending
        self._check()
        datadir.put_in_place(self._copy, rebase)
        self._copy.rebase.unlink(missing_ok=True)
        self._pending, self._prints = None, prints

    def _end(self) -> datadir.Position:
        """Return the end of this node's log."""
        name = self._node.log_names()[-1]
        start = self._copied.get(name, _Copied()).last_start
        _, found = self._read(self._node.log / name, start=start)
        return name, start + (found[-1].end if found else 0)

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < PATIENCE_SECONDS:
            return
        self._told_at = now
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - self.behind_seconds))
        why = (error.strerror or str(error)) + placement.advice(error) if isinstance(error, OSError) else str(error)
        self._tell(f"etcd's data have not been copied to {self._copy.root} since {since}: {why}")
        logger.warning(
            "Cannot copy etcd's data to the state directory; changes since the last copy are lost if this node fails",
            directory=str(self._copy.root),
            error=why,
            behind_seconds=round(self.behind_seconds, 1),
        )
