"""Terms of office: who holds a directory, decided by exclusive creation alone.

Each holder has a numbered file, ``terms/<number>``; the highest number holds the directory.  A file is made with
O_EXCL, which the file server decides (NFS since version 3, Lustre, GPFS, BeeGFS, CephFS), so of two that want the same
number one gets it.  Locks take no part: on many shared file systems they reach no other host.

- To take over, create the number after the last, then look whether a higher one has appeared.
- The holder touches its file from time to time, and leaves when it sees a higher number.
- An orderly end sets the file's time to the epoch: that needs no space, and keeps the number.  Numbers are never used
  twice, so whoever has slept over a takeover and an end still cannot create one that has been held.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.controlplane import ownership

if TYPE_CHECKING:
    from pathlib import Path

    from hpk.controlplane.ownership import Owner

KEPT = 8
"""Past terms whose files stay: a process would have to sleep over as many to create an old number."""
_WIDTH = 10


class Terms:
    """The files; each method is one look or one change."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def latest(self) -> int:
        """Return the highest number, or 0 if nobody has ever held the directory."""
        jobdir.make_directory(str(self._directory))
        return max((int(name) for name in os.listdir(self._directory) if name.isdigit()), default=0)  # noqa: PTH208 - names

    def holder(self, number: int) -> Owner | None:
        """Return who wrote the file; None if that cannot be read (yet), or the file is gone."""
        return ownership.parse(jobdir.peek_json(str(self._path(number))))

    def read(self, number: int) -> Owner | None:
        """Return who wrote the file; None if it is gone or says nothing.

        Raises:
            OSError: The file system does not say.
        """
        return ownership.parse(jobdir.read_json(str(self._path(number))))

    def is_over(self, number: int) -> bool:
        """Return whether this term has ended in order, or has no file."""
        return self.beat_at(number) in (None, 0)

    def beat_at(self, number: int) -> int | None:
        """Return the file's time in nanoseconds, or None if there is no file."""
        try:
            with self._path(number).open("rb") as file:  # not stat alone: NFS answers that from its cache
                return os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def silent_seconds(self, number: int) -> float:
        """Return how long ago the holder gave a sign of life, both times being the file server's.

        Raises:
            OSError: The file system refused.
        """
        probe = self._directory / f"now.{os.urandom(4).hex()}"
        probe.touch(mode=0o600)
        now = probe.stat().st_mtime_ns
        probe.unlink()
        return (now - (self.beat_at(number) or 0)) / 1e9

    def create(self, number: int, owner: Owner) -> bool:
        """Create the file, and return whether it was not there before.

        Raises:
            OSError: The file system refused; nothing is left.
        """
        path = self._path(number)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return False
        try:
            os.write(descriptor, json.dumps(asdict(owner)).encode())
            os.fsync(descriptor)
        except OSError:
            self.remove(number)
            raise
        finally:
            os.close(descriptor)
        return True

    def beat(self, number: int) -> None:
        """Give a sign of life.

        Raises:
            OSError: The file system refused, or the file is gone.
        """
        os.utime(self._path(number))

    def end(self, number: int) -> None:
        """Say that the term has ended."""
        with contextlib.suppress(OSError):
            os.utime(self._path(number), (0, 0))

    def remove(self, number: int) -> None:
        """Withdraw a number that was never held."""
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def forget(self, before: int) -> None:
        """Remove files of terms that nobody can mistake for free numbers any more."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):  # noqa: PTH208 - names
                if name.isdigit() and int(name) <= before - KEPT:
                    (self._directory / name).unlink()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:0{_WIDTH}}"
