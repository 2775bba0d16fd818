"""Terms of office: the holder of a directory, decided by exclusive creation alone.

Each holder has a numbered file, ``terms/<number>``; the highest number holds the directory. Files are created with
O_EXCL, which the file server decides (NFS since version 3, Lustre, GPFS, BeeGFS, CephFS), so only one of two contenders
gets a number. Locks are not used: on many shared file systems they reach no other host.

- To take over, create the next number, then check whether a higher one has appeared.
- The holder touches its file regularly, and ends when it sees a higher number.
- An orderly end sets the file's time to the epoch: that needs no space, and keeps the number. Numbers are never reused,
  so a process that slept through a takeover and an end still cannot create one that was held.
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
"""The number of past terms whose files stay: a process would have to sleep through as many to create an old number."""
_WIDTH = 10


class Terms:
    """The files of terms; each method is one read or one change, and raises OSError if the file system fails."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def latest(self) -> int:
        """Return the highest number, or 0 if nobody has ever held the directory."""
        jobdir.make_directory(str(self._directory))
        return max((int(name) for name in os.listdir(self._directory) if name.isdigit()), default=0)  # noqa: PTH208 - names

    def holder(self, number: int) -> Owner | None:
        """Return the owner in the file; None if it cannot be read (yet) or is missing. Never raises."""
        return ownership.parse(jobdir.peek_json(str(self._path(number))))

    def read(self, number: int) -> Owner | None:
        """Return the owner in the file; None if the file is missing or has none."""
        return ownership.parse(jobdir.read_json(str(self._path(number))))

    def is_over(self, number: int) -> bool:
        """Return whether this term ended in order or has no file."""
        return self.beat_at(number) in (None, 0)

    def beat_at(self, number: int) -> int | None:
        """Return the file's time in nanoseconds, or None if there is no file."""
        try:
            with self._path(number).open("rb") as file:  # opened, since NFS answers stat alone from its cache
                return os.fstat(file.fileno()).st_mtime_ns
        except FileNotFoundError:
            return None

    def silent_seconds(self, number: int) -> float:
        """Return the time since the holder's last heartbeat, by the file server's clock."""
        probe = self._directory / f"now.{os.urandom(4).hex()}"
        probe.touch(mode=0o600)
        now = probe.stat().st_mtime_ns
        probe.unlink()
        return (now - (self.beat_at(number) or 0)) / 1e9

    def create(self, number: int, owner: Owner) -> bool:
        """Create the file; return False if it already existed. After an OSError nothing is left."""
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
        """Touch the file as a heartbeat; a missing file is an OSError too."""
        os.utime(self._path(number))

    def end(self, number: int) -> None:
        """Mark the term as ended, if the file system permits."""
        with contextlib.suppress(OSError):
            os.utime(self._path(number), (0, 0))

    def remove(self, number: int) -> None:
        """Withdraw a number whose term never began, if the file system permits."""
        with contextlib.suppress(OSError):
            self._path(number).unlink()

    def forget(self, before: int) -> None:
        """Remove files so old that nobody can take their numbers for free ones, if the file system permits."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):  # noqa: PTH208 - names
                if name.isdigit() and int(name) <= before - KEPT:
                    (self._directory / name).unlink()

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:0{_WIDTH}}"
