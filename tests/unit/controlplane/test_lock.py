"""One control plane for a state directory."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from structlog import testing

from hpk import errors, jobdir
from hpk.controlplane import lock, ownership, terms
from hpk.controlplane.ownership import Owner
from hpk.slurm import model
from tests import background, waiting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator

pytestmark = pytest.mark.virtual_time

HOLD = """
import asyncio, pathlib, sys, structlog
from hpk import errors
from hpk.controlplane import lock
from hpk.slurm import model
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
async def ask():
    states = {"7": "FAILED", "42": "RUNNING", "43": "RUNNING"}
    return {job_id: model.Job(id=job_id, state=model.JobState(state)) for job_id, state in states.items()}
async def main():
    try:
        where, job_id = pathlib.Path(sys.argv[1]), sys.argv[2]
        async with lock.locked(where, job_id=job_id, beat_seconds=0.01, ask=ask) as held:
            print("held", flush=True)
            await held.keep()
    except errors.Fatal as error:
        print("refused" if "another control plane runs" in str(error) else error, flush=True)
asyncio.run(main())
"""
WITHOUT_LOCKS = f"import fcntl\ndef none(*_): raise OSError(38, 'none')\nfcntl.lockf = none\n{HOLD}"
LOCAL_LOCKS = f"import fcntl\nfcntl.lockf = lambda *_: None\n{HOLD}"
ELSEWHERE = "import os, socket\nsocket.gethostname = lambda: f'host-{os.getpid()}'\n"


async def contender(directory: Path, program: str = HOLD, *, job_id: str = "42") -> asyncio.subprocess.Process:
    """Another process that wants the directory."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        str(directory),
        job_id,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def holder(directory: Path) -> asyncio.subprocess.Process:
    """Another process that holds the directory."""
    other = await contender(directory)
    assert other.stdout is not None
    assert await other.stdout.readline() == b"held\n"
    return other


@pytest.mark.parametrize(
    ("program", "is_stale"),
    [(HOLD, False), (ELSEWHERE + WITHOUT_LOCKS, False), (HOLD, True), (ELSEWHERE + LOCAL_LOCKS, True)],
    ids=["fresh", "fresh, no locks", "stale", "stale, local locks"],
)
async def test_of_two_that_start_at_once_one_lives(tmp_path: Path, program: str, is_stale: bool) -> None:  # noqa: FBT001
    """In a fresh directory and after one that was killed; with locks, with none, with locks that lock nobody out."""
    if is_stale:
        files = terms.Terms(tmp_path / "terms")
        files.latest()
        files.create(7, Owner(host="elsewhere", job_id="7", token="t"))
    both = await asyncio.gather(*(contender(tmp_path, program, job_id=job_id) for job_id in ("42", "43")))
    told = sorted([await both[0].stdout.readline(), await both[1].stdout.readline()])  # type: ignore[union-attr]
    alive = [one for one in both if one.returncode is None]
    for one in alive:
        one.kill()
    await asyncio.gather(*(one.wait() for one in both))
    assert told == [b"held\n", b"refused\n"]


async def test_a_second_one_is_told_who_holds_it(tmp_path: Path) -> None:
    """The refusal names host and job, and says how to get out; a killed holder leaves no obstacle."""
    other = await holder(tmp_path)
    with pytest.raises(errors.Fatal, match=f"{socket.gethostname()}, Slurm job 42.*scancel 42.*HPK_STATE"):
        async with lock.locked(tmp_path):
            pass
    other.kill()
    await other.wait()
    async with lock.locked(tmp_path, stale_seconds=100):
        pass


async def test_an_orderly_end_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    """After the block the directory is free for any host, at once."""
    for number in (1, 2):
        async with lock.locked(tmp_path, job_id="1") as held:
            assert ownership.read(tmp_path) == held.owner
            assert held.number == number
            assert (tmp_path / "owner.json").stat().st_mode & 0o777 == 0o600
        assert ownership.read(tmp_path) is None


def foreign(directory: Path, **fields: Any) -> terms.Terms:
    """What a control plane of another host leaves when its node dies."""
    files = terms.Terms(directory / "terms")
    number = files.latest() + 1
    files.create(number, replace(Owner(host="elsewhere", job_id="7", started_at=time.time(), token="t"), **fields))
    return files


async def test_another_host_that_beats_is_alive(tmp_path: Path) -> None:
    """Without Slurm's word a sign of life is enough to refuse."""
    files = foreign(tmp_path)

    async def beat() -> None:
        for beats in itertools.count(1):
            await asyncio.sleep(lock.BEAT_SECONDS)
            os.utime(files._path(1), (beats, beats))  # the file system's own clock does not run so fast

    beating = asyncio.create_task(beat())
    with pytest.raises(errors.Fatal, match="host elsewhere, Slurm job 7"):
        async with lock.locked(tmp_path):
            pass
    beating.cancel()


@pytest.mark.parametrize("content", [None, b"", b"{"])
async def test_another_host_that_is_silent_is_taken_over(tmp_path: Path, content: bytes | None) -> None:
    """A node that died gives no sign of life, nor does one whose file is empty since a power cut."""
    foreign(tmp_path)
    if content is not None:
        (tmp_path / "terms" / f"{1:010}").write_bytes(content)
    with testing.capture_logs() as said:
        async with lock.locked(tmp_path, job_id="8") as held:
            assert held.number == 2
    assert "watching for signs of life" in said[0]["event"]  # whoever waits reads for what


async def test_who_was_taken_over_ends(tmp_path: Path) -> None:
    """An owner that was only slow finds out at its next beat, ends, and leaves the new owner's term alone."""
    async with lock.locked(tmp_path, job_id="1") as held:
        files = foreign(tmp_path)
        assert not held.is_ours()
        with pytest.raises(errors.Fatal, match="took it over"):
            await held.keep()
    assert files.latest() == 2
    assert not files.is_over(2)


async def test_a_file_server_that_does_not_say_is_no_takeover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last of etcd's data would be left uncopied without a word."""
    async with lock.locked(tmp_path, job_id="1") as held:
        with monkeypatch.context() as patched:

            def stale(_: str) -> None:
                raise OSError(errno.ESTALE, "Stale file handle")

            patched.setattr(jobdir, "read_json", stale)
            with pytest.raises(OSError, match="Stale"):
                held.is_ours()
        assert held.is_ours()


def job(word: str, *, comment: str = "", started_at: float = 100.0) -> dict[str, model.Job]:
    """Slurm's answer: one job, number 7."""
    return {"7": model.Job(id="7", state=model.JobState(word), comment=comment, start_time=started_at)}


@pytest.mark.parametrize(
    ("jobs", "silent_seconds", "word"),
    [
        (job("RUNNING"), 60, "lives"),
        (job("FAILED"), 1, "gone"),
        (job("OUT_OF_MEMORY"), 1, "gone"),
        (job("NODE_FAIL"), 1, "unknown"),
        (job("COMPLETING"), 1, "unknown"),
        (job("PENDING"), 1, "unknown"),
        (job("RUNNING", started_at=5000.0), 3600, "gone"),
        (job("RUNNING", started_at=5000.0), 1, "unknown"),
        (job("RUNNING", comment="hpk-control-plane:/other"), 1, "unknown"),
        ({}, 3600, "gone"),
        ({}, 5, "unknown"),
    ],
)
def test_slurm_knows_whether_an_owner_is_gone(jobs: dict[str, model.Job], silent_seconds: float, word: str) -> None:
    """At once where its answer proves something: the job is over, or its number is another job's by now."""
    owner = Owner(host="c1", job_id="7", job_started_at=100.0)
    us = Owner(host="c2", job_id="8")
    assert lock.verdict(owner, us, jobs, state=Path("/home/a/.hpk"), silent_seconds=silent_seconds) == word


async def test_an_owner_whose_job_is_over_is_not_watched(tmp_path: Path) -> None:
    """Slurm's word is enough, however long the patience without it; an owner of another cluster is none of Slurm's."""
    foreign(tmp_path, job_started_at=100.0, cluster="a")

    async def ask() -> dict[str, model.Job]:
        return job("FAILED")

    async with lock.locked(tmp_path, job_id="8", cluster="a", ask=ask, stale_seconds=1000):
        pass
    files = foreign(tmp_path, job_started_at=100.0, cluster="b")

    async def take() -> None:
        async with lock.locked(tmp_path, job_id="8", cluster="a", ask=ask, stale_seconds=1000):
            pass

    with testing.capture_logs() as said:
        taking = asyncio.create_task(take())
        await waiting.until(lambda: said or taking.done())
        await background.end(taking)
    assert ["watching for signs of life" in line["event"] for line in said] == [True]
    assert files.latest() == 3


async def test_an_owner_whose_job_runs_is_not_watched(tmp_path: Path) -> None:
    """It may be starting again inside its job."""
    foreign(tmp_path, job_started_at=100.0)

    async def ask() -> dict[str, model.Job]:
        return job("RUNNING")

    with pytest.raises(errors.Fatal, match="Slurm job 7"):
        async with lock.locked(tmp_path, job_id="8", ask=ask, stale_seconds=1000):
            pass


async def test_the_same_job_starts_again_at_once(tmp_path: Path) -> None:
    """hpk.sbatch starts a control plane that was killed again, where no lock says anything too."""
    us = Owner(host="c1", job_id="7", job_started_at=100.0, boot_id="b", token="1")
    assert lock.has_ended_here(us, replace(us, token="2"))
    assert not lock.has_ended_here(us, replace(us, job_id="8"))
    assert not lock.has_ended_here(us, replace(us, job_started_at=200.0))
    locked = replace(us, has_lock=True)
    assert lock.has_ended_here(locked, replace(locked, job_id="8"))
    assert not lock.has_ended_here(locked, us)
    assert not lock.has_ended_here(us, replace(locked, job_id="8"))


class Memory:
    """A file server: terms by number, each look and change at once."""

    def __init__(self, stale: int = 0) -> None:
        self.files: dict[int, Owner] = {stale: Owner(host="dead")} if stale else {}
        self.ended: set[int] = set()
        self.refuses = False

    def latest(self) -> int:
        return max(self.files, default=0)

    def holder(self, number: int) -> Owner | None:
        return self.files.get(number)

    def is_over(self, number: int) -> bool:
        return number in self.ended or number not in self.files

    def create(self, number: int, owner: Owner) -> bool:
        if number in self.files:
            return False
        self.files[number] = owner
        return True

    def remove(self, number: int) -> None:
        self.files.pop(number, None)


class Step:
    """Gives the turn to whoever the schedule names."""

    def __await__(self) -> Generator[None, None, None]:
        yield


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """A look or a change, each at a turn of its own."""
    await Step()
    return function(*arguments)


def contend(files: Memory, name: str) -> Coroutine[Any, Any, int]:
    """One who wants the directory; only who has ended, and the dead, are gone."""

    async def is_gone(_number: int, holder: Owner | None) -> None:
        await Step()
        if holder is None or holder.host != "dead":
            raise errors.Fatal("lives")

    settle: Callable[[], Awaitable[None]] = Step
    return lock.take(files, Owner(host=name), is_gone=is_gone, settle=settle, call=call)  # type: ignore[arg-type]


def play(files: Memory, schedule: Iterator[int], count: int) -> list[int | None]:
    """Let the contenders take turns; what each came to: its term, or None if it was refused."""
    running = dict(enumerate(contend(files, f"host-{number}") for number in range(count)))
    ends: list[int | None] = [None] * count
    for number in schedule:
        if number in running:
            try:
                running[number].send(None)
            except StopIteration as end:
                ends[number] = end.value
                del running[number]
            except errors.Fatal:
                del running[number]
        if not running:
            break
    assert not running, "the schedule was too short"
    return ends


@pytest.mark.parametrize("stale", [0, 7])
def test_whoever_comes_when_one_lives(stale: int) -> None:
    """Every way in which two can take turns for their first nine steps: one holds the directory, never two or none."""
    for order in itertools.product((0, 1), repeat=9):
        files = Memory(stale)
        ends = play(files, itertools.chain(order, itertools.cycle((0, 1)), ()), 2)
        winners = [number for number in ends if number]
        assert winners == [files.latest()], order


def test_many_who_come_together() -> None:
    """Five at once, in two hundred random orders."""
    chance = random.Random(1)  # noqa: S311 - an order
    for _ in range(200):
        files = Memory(stale=3)
        ends = play(files, iter(lambda: chance.randrange(5), None), 5)
        assert [number for number in ends if number] == [files.latest()]


def test_who_slept_over_a_takeover_and_an_end_withdraws(tmp_path: Path) -> None:
    """Its number has been held: it cannot be created, or it is not the highest."""
    files = terms.Terms(tmp_path)
    files.latest()
    for number in range(1, 2 * terms.KEPT):
        assert files.create(number, Owner(host="a"))
        files.forget(number)
    assert not files.create(terms.KEPT + 1, Owner(host="b"))
    assert files.latest() == 2 * terms.KEPT - 1
    assert len(list(tmp_path.iterdir())) == terms.KEPT


async def test_who_was_taken_for_gone_before_he_began_withdraws(tmp_path: Path) -> None:
    """He slept between creating his file and looking back: there is a higher number, whose holder lives."""
    files = terms.Terms(tmp_path)
    files.latest()

    async def settle() -> None:
        assert files.create(2, Owner(host="b"))

    async def is_gone(_number: int, holder: Owner | None) -> None:
        raise errors.Fatal(f"{holder} lives")

    with pytest.raises(errors.Fatal, match=r"host b.* lives"):
        await lock.take(files, Owner(host="a"), is_gone=is_gone, settle=settle)
    assert (files.latest(), files.beat_at(1)) == (2, None)


def test_a_term_that_cannot_be_written_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full file system a file can be made, and not be written; it must not look like somebody who starts."""
    files = terms.Terms(tmp_path)
    files.latest()

    def full(*_: object) -> int:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr("os.write", full)
    with pytest.raises(OSError, match="quota"):
        files.create(1, Owner(host="a"))
    assert files.latest() == 0
