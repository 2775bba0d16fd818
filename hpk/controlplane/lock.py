"""Only one control plane may use a state directory, whichever host it runs on.

Two things guard it, because neither is enough on every shared file system:

- ``lock``: a POSIX lock (fcntl), which NFS and Lustre carry between hosts unless mounted with ``nolock`` or
  ``localflock``, and which dies with its owner;
- ``owner.json``: says who, and beats: the owner touches it every ten seconds.  If another host's file beats
  while we watch, somebody lives there; one that does not for 25 s is stale and is taken over.

They are two files because closing any descriptor of a file gives up all POSIX locks on it, and because NFS
shows another host's changes only to those who open the file anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import structlog

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

BEAT_SECONDS = 10.0
STALE_SECONDS = 25.0
_LOOK_SECONDS = 0.5
_HELD = (errno.EAGAIN, errno.EACCES)
_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Owner:
    """Who holds the lock, as the file says."""

    host: str
    job_id: str
    started_at: float
    token: str
    """Tells this owner from every other, also from itself after a restart."""

    def __str__(self) -> str:
        job = f", Slurm job {self.job_id}" if self.job_id else ""
        return f"host {self.host}{job}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.started_at))}"


class Lock:
    """A held lock."""

    def __init__(self, owner: Owner, path: Path, *, beat_seconds: float) -> None:
        self.owner = owner
        self._path = path
        self._beat_seconds = beat_seconds

    def is_ours(self) -> bool:
        """Whether nobody has taken it over, as far as the file system says."""
        return read(self._path) == self.owner

    async def keep(self) -> None:
        """Beat until cancelled.

        Raises:
            errors.Fatal: Somebody else took the lock over: we must end before both write.
        """
        while True:
            await asyncio.sleep(self._beat_seconds)
            with contextlib.suppress(OSError):  # a file server that is away: the next beat may work
                if (owner := read(self._path)) != self.owner:
                    who = f"another control plane took it over ({owner})" if owner else f"{self._path} is gone"
                    raise errors.Fatal(f"Cannot go on with {self._path.parent}: {who}")
                os.utime(self._path)


@contextlib.asynccontextmanager
async def locked(
    directory: Path, *, job_id: str, beat_seconds: float = BEAT_SECONDS, stale_seconds: float = STALE_SECONDS
) -> AsyncIterator[Lock]:
    """Hold the directory while the block lasts.

    Args:
        directory: It must exist.
        job_id: Our Slurm job, for those who find the lock taken.
        beat_seconds: Between signs of life.
        stale_seconds: How long to watch for another host's sign of life.

    Raises:
        errors.Fatal: Somebody holds it; says who, and how to get out.
    """
    host = socket.gethostname()
    path = directory / "owner.json"
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await _take(descriptor, path, host=host, stale_seconds=stale_seconds)
        owner = Owner(host=host, job_id=job_id, started_at=time.time(), token=os.urandom(8).hex())
        jobdir.write_json(str(path), asdict(owner))
        yield Lock(owner, path, beat_seconds=beat_seconds)
    finally:
        # Without the file the next one, on whichever host, need not watch it.
        with contextlib.suppress(OSError, UnboundLocalError):
            if read(path) == owner:
                path.unlink()
        os.close(descriptor)


def read(path: Path) -> Owner | None:
    """Who holds the lock, or None if nobody does or the file is damaged."""
    try:
        return Owner(**jobdir.read_json(str(path)))
    except (ValueError, TypeError):
        return None


async def _take(descriptor: int, path: Path, *, host: str, stale_seconds: float) -> None:
    owner = read(path)
    can_lock = _try_lock(descriptor, path, owner)
    if owner is None or (can_lock and owner.host == host):
        return  # free, or left over by a process of this host that is gone
    logger.warning("The state directory was not left in order; watching for its owner", owner=str(owner))
    if await _beats(path, stale_seconds=stale_seconds):
        raise _refusal(path, owner)
    logger.warning("Taking over the state directory: its owner gave no sign of life", owner=str(owner))


def _try_lock(descriptor: int, path: Path, owner: Owner | None) -> bool:
    """Whether the POSIX lock is ours; False if the file system has none."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            raise _refusal(path, owner) from error
        if error.errno in _UNSUPPORTED:
            return False
        raise errors.Fatal(f"Cannot lock {path.parent}: {error.strerror}") from error
    return True


async def _beats(path: Path, *, stale_seconds: float) -> bool:
    """Whether the file's time moves: compared with itself, never with our clock, which may differ."""
    seen = _time_of(path)
    end = time.monotonic() + stale_seconds
    while time.monotonic() < end:
        await asyncio.sleep(min(_LOOK_SECONDS, stale_seconds / 5))
        if _time_of(path) != seen:
            return True
    return False


def _time_of(path: Path) -> int | None:
    try:
        with path.open("rb") as file:  # not stat alone: NFS answers that from its cache
            return os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None


def _refusal(path: Path, owner: Owner | None) -> errors.Fatal:
    who = str(owner) if owner else "a process that is just starting"
    end = f"'hpk down' or 'scancel {owner.job_id}'" if owner and owner.job_id else "'hpk down'"
    return errors.Fatal(
        f"Cannot use {path.parent}: another control plane runs on it ({who}).  End it with {end}, or use another "
        f"directory (HPK_STATE).  If that host is gone and the lock stays taken, remove {path.parent / 'lock'}"
    )
