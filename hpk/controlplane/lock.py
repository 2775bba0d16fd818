"""Only one control plane may use a state directory, whichever host it runs on.

Exclusive creation decides (:mod:`hpk.controlplane.terms`)::

    last term ended ─────────────────────────────┐
    last term open: is its holder gone?  yes ────┤
                                         no      ▼
                                         │   create the next number ── somebody was quicker ──► look again
                                         ▼       │
                                      refused    ▼
                                             pause, look: is ours the highest?  no ──► withdraw, look again
                                                 │ yes
                                                 ▼
                                             hold: beat, and leave when a higher number appears

Whether a holder is gone is asked in this order: of Slurm, which knows whether its job is over; of a POSIX lock, which
is worth something between processes of one host only; and else its file is watched for signs of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import structlog

from hpk import aiotasks, errors, jobdir
from hpk.controlplane import ownership, terms
from hpk.controlplane.ownership import Owner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from hpk.slurm import model

    Ask = Callable[[], Awaitable[Mapping[str, model.Job]]]
    """Returns all jobs of this user that Slurm knows; raises errors.SlurmUnavailable."""
    Call = Callable[..., Awaitable[Any]]
    """Calls a function that reads or changes files, off the event loop."""

BEAT_SECONDS = 10.0
STALE_SECONDS = 25.0
"""Two and a half heartbeats."""
SETTLE_SECONDS = 0.2
"""Pause between creating our file and checking for a higher number."""
FORGOTTEN_SECONDS = 120.0
"""A holder that was silent for this long, and whose job Slurm does not know, is gone."""
ASK_SECONDS = 15.0
"""How long to wait for Slurm before watching the holder's file instead."""
_LOOK_SECONDS = 0.5
_HELD = (errno.EAGAIN, errno.EACCES)
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

Verdict = Literal["gone", "lives", "unknown"]

logger = structlog.get_logger(__name__)


class Lock:
    """A held lock."""

    def __init__(self, owner: Owner, number: int, files: terms.Terms, *, directory: Path, beat_seconds: float) -> None:
        self.owner = owner
        self.number = number
        self._files = files
        self._directory = directory
        # The heartbeat starts here and not in `keep`: preparation may take longer than others wait.
        self._beating = asyncio.create_task(self._beat_forever(beat_seconds), name="heartbeat of the state directory")

    def is_ours(self) -> bool:
        """Return whether nobody has taken over the directory.

        Raises:
            OSError: The file system cannot tell.
        """
        return self._files.latest() == self.number and self._files.read(self.number) == self.owner

    async def keep(self) -> None:
        """Wait until cancelled.

        Raises:
            errors.Fatal: Another control plane took the directory over: this one must end before both write.
        """
        await asyncio.shield(self._beating)

    async def close(self) -> None:
        """Stop the heartbeat."""
        await aiotasks.cancel(self._beating)

    async def _beat_forever(self, seconds: float) -> None:
        while True:
            with contextlib.suppress(OSError):  # the file server is away: the next heartbeat may succeed
                await asyncio.to_thread(self._beat)
            await asyncio.sleep(seconds)

    def _beat(self) -> None:
        if (latest := self._files.latest()) > self.number:
            who = self._files.holder(latest)
            raise errors.Fatal(
                f"Cannot go on with {self._directory}: another control plane took it over ({who or 'unknown'})"
            )
        if self._files.beat_at(self.number) is None:
            raise errors.Fatal(f"Cannot go on with {self._directory}: its file of this control plane's term is gone")
        self._files.beat(self.number)


@contextlib.asynccontextmanager
async def locked(
    directory: Path,
    *,
    job_id: str = "",
    job_started_at: float = 0.0,
    cluster: str = "",
    ask: Ask | None = None,
    beat_seconds: float = BEAT_SECONDS,
    stale_seconds: float = STALE_SECONDS,
) -> AsyncIterator[Lock]:
    """Hold the directory while the block runs.

    Args:
        directory: An existing directory, whose parent is the state directory.
        job_id: Our Slurm job, for those who find the directory in use.
        job_started_at: When Slurm started it.
        cluster: Slurm's name of the cluster.
        ask: Asks Slurm for this user's jobs.
        beat_seconds: Interval of the heartbeat.
        stale_seconds: How long to watch for another's heartbeat.

    Raises:
        errors.Fatal: The directory is in use; the error says by whom, and what to do.
        OSError: The file system failed.
    """
    files = terms.Terms(directory / "terms")
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    has_lock = _lock(descriptor)
    us = Owner(
        host=socket.gethostname(),
        job_id=job_id,
        job_started_at=job_started_at,
        started_at=time.time(),
        cluster=cluster,
        has_lock=bool(has_lock),
        boot_id=_boot_id(),
        token=os.urandom(8).hex(),
    )
    number, held = 0, None
    try:
        judge = Judge(us, files, directory=directory, has_lock=has_lock, ask=ask, stale_seconds=stale_seconds)
        number = await take(files, us, is_gone=judge.is_gone, settle=judge.settle)
        files.forget(number)
        jobdir.write_json(str(directory / ownership.FILE), asdict(us), is_durable=False)  # for others to read
        held = Lock(us, number, files, directory=directory, beat_seconds=beat_seconds)
        yield held
    finally:
        if held is not None:
            await held.close()
        if number and files.holder(number) == us:
            if files.latest() == number:
                with contextlib.suppress(OSError):
                    (directory / ownership.FILE).unlink()
            # The next holder, on whichever host, need not check whether we are gone.
            files.end(number)
        os.close(descriptor)


async def take(
    files: terms.Terms,
    us: Owner,
    *,
    is_gone: Callable[[int, Owner | None], Awaitable[None]],
    settle: Callable[[], Awaitable[None]],
    call: Call = asyncio.to_thread,
) -> int:
    """Take the directory, and return the number of our term.

    `is_gone` returns when a holder (None: its file cannot be read) is gone, and raises errors.Fatal while it is alive.
    `settle` pauses between creating our file and checking that it is the last. `call` runs each file operation.

    Raises:
        errors.Fatal: The directory is in use.
        OSError: The file system failed.
    """
    while True:
        last: int = await call(files.latest)
        if last and not await call(files.is_over, last):
            await is_gone(last, await call(files.holder, last))
        ours = last + 1
        if not await call(files.create, ours, us):
            continue  # another control plane was faster: check it
        try:
            await settle()
            if await call(files.latest) == ours:
                return ours
        except BaseException:
            files.remove(ours)
            raise
        await call(files.remove, ours)


class Judge:
    """The decision whether the holder of an open term is gone."""

    def __init__(
        self,
        us: Owner,
        files: terms.Terms,
        *,
        directory: Path,
        has_lock: bool | None,
        ask: Ask | None = None,
        stale_seconds: float = STALE_SECONDS,
    ) -> None:
        self._us, self._files, self._directory = us, files, directory
        self._has_lock, self._ask, self._stale_seconds = has_lock, ask, stale_seconds
        self._settle_seconds = SETTLE_SECONDS

    async def is_gone(self, number: int, holder: Owner | None) -> None:
        """Return when the holder is gone.

        Raises:
            errors.Fatal: The holder is alive.
        """
        if holder is not None and (holder.host, holder.boot_id) == (self._us.host, self._us.boot_id):
            if has_ended_here(holder, self._us):
                return
            if self._has_lock is False:
                raise self._refusal(holder)
        found: Verdict = "unknown"
        if holder is not None and self._ask is not None and holder.job_id and holder.cluster == self._us.cluster:
            logger.warning(
                "The last control plane left no word of its end; asking Slurm for its job", owner=str(holder)
            )
            found = await self._verdict(number, holder)
        if found == "gone":
            logger.warning("Taking over the state directory: its owner's job is over", owner=str(holder))
            return
        if found == "lives" or self._has_lock is False:
            raise self._refusal(holder)
        logger.warning(
            "The last control plane left no word of its end; watching for signs of life",
            owner=str(holder or "unknown"),
            seconds=round(self._stale_seconds),
        )
        if await self._beats(number):
            raise self._refusal(holder)
        # A holder that was only cut off sees our number at its next heartbeat, and ends.
        self._settle_seconds = max(self._settle_seconds, min(BEAT_SECONDS, self._stale_seconds))
        logger.warning("Taking over the state directory: its owner gave no sign of life")

    async def settle(self) -> None:
        """Pause before checking that our number is the last."""
        await asyncio.sleep(self._settle_seconds)

    async def _verdict(self, number: int, holder: Owner) -> Verdict:
        assert self._ask is not None
        try:
            async with asyncio.timeout(ASK_SECONDS):
                jobs = await self._ask()
        except (errors.SlurmUnavailable, TimeoutError) as error:
            logger.warning("Slurm does not say whether the owner's job is over", error=str(error) or "no answer")
            return "unknown"
        silent_seconds = await asyncio.to_thread(self._files.silent_seconds, number)
        return verdict(holder, self._us, jobs, state=self._directory.parent, silent_seconds=silent_seconds)

    async def _beats(self, number: int) -> bool:
        """Return whether the file's time changes. Our own clock, which may differ, is not used."""
        seen = await asyncio.to_thread(self._files.beat_at, number)
        loop = asyncio.get_running_loop()
        end = loop.time() + self._stale_seconds
        while loop.time() < end:
            await asyncio.sleep(min(_LOOK_SECONDS, self._stale_seconds / 5))
            now = await asyncio.to_thread(self._files.beat_at, number)
            if now in (None, 0):
                return False  # an orderly end
            if now != seen:
                return True
        return False

    def _refusal(self, holder: Owner | None) -> errors.Fatal:
        who = str(holder) if holder else "a process that is just starting"
        end = f"'hpk down' or 'scancel {holder.job_id}'" if holder and holder.job_id else "'hpk down'"
        return errors.Fatal(
            f"Cannot use {self._directory}: another control plane runs on it ({who}).  End it with {end}, or use "
            "another directory (HPK_STATE)"
        )


def has_ended_here(holder: Owner, us: Owner) -> bool:
    """Return whether a holder on this host has ended, from the locks and jobs of both.

    If it had the POSIX lock, our having it now proves that, for both are processes of one kernel. If it had none, our
    being the same job does: hpk.sbatch restarts the control plane only after the last one has ended.
    """
    is_same_job = bool(us.job_id) and (holder.job_id, holder.job_started_at) == (us.job_id, us.job_started_at)
    return us.has_lock if holder.has_lock else is_same_job


def verdict(holder: Owner, us: Owner, jobs: Mapping[str, model.Job], *, state: Path, silent_seconds: float) -> Verdict:
    """Return what Slurm's answer says about the holder.

    A node that Slurm has given up may still run it. If Slurm has forgotten its job or reused the ID, the job ended long
    ago, unless Slurm was set up again meanwhile: then the holder still gives signs of life.
    """
    job = jobs.get(holder.job_id)
    if job is None or ownership.is_later(job, holder):
        return "gone" if silent_seconds > FORGOTTEN_SECONDS else "unknown"
    if holder.job_id == us.job_id:  # requeued: Slurm gave up the other node, which may not know
        return "unknown"
    if job.state.is_over:
        return "unknown" if job.state.value == "NODE_FAIL" else "gone"
    is_another = ownership.relation(job, state, holder) is ownership.Relation.ANOTHERS
    return "unknown" if is_another or job.state.is_ending or job.state.is_queued else "lives"


def _lock(descriptor: int) -> bool | None:
    """Try to take the POSIX lock; return whether it is ours, or None if the file system has no locks."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _boot_id() -> str:
    try:
        return Path(_BOOT_ID).read_text(encoding="ascii").strip()
    except OSError:
        return ""
