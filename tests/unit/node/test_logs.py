"""Which run's log is shown, and how it is read and followed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from hpk import errors, jobdir
from hpk.node import cri, logquery, logs
from tests.fakes import pods as fakes

pytestmark = pytest.mark.virtual_time

WAITING = {"waiting": {"reason": "CrashLoopBackOff"}}


def line(text: str, *, tag: str = "F") -> bytes:
    """An entry of a log file."""
    return f"2026-01-01T00:00:00.000000000Z stdout {tag} {text}\n".encode()


def query(*, follow: bool = False, tail: int | None = None, **options: Any) -> logquery.Query:
    """A decoded query."""
    return logquery.Query(follow=follow, previous=False, tail_entries=tail, options=cri.LogOptions(**options))


async def everything(path: Path, wanted: logquery.Query) -> bytes:
    """The whole answer, without following."""
    return b"".join([block async for block in logs.stream(str(path), wanted)])


@pytest.mark.parametrize(
    ("pod", "previous", "counts"),
    [
        (fakes.pod(state=fakes.RUNNING, restartCount=2), False, (2,)),
        (fakes.pod(state=fakes.ENDED, restartCount=2), False, (2,)),
        (fakes.pod(state=WAITING, restartCount=2, lastState=fakes.ENDED), False, (2, 1)),
        (fakes.pod(state=fakes.RUNNING, restartCount=2, lastState=fakes.ENDED), True, (1,)),
        (fakes.pod(state=fakes.ENDED, restartCount=2, lastState=fakes.ENDED), True, (1,)),
        (fakes.pod(state=WAITING, restartCount=2, lastState=fakes.ENDED), True, (2, 1)),
    ],
)
def test_choose(pod: dict[str, Any], previous: bool, counts: tuple[int, ...]) -> None:  # noqa: FBT001 - a parameter
    """The current run, or the last that ended; while a container waits for its restart they are the same."""
    assert logs.choose(pod, "c", previous=previous).counts == counts


@pytest.mark.parametrize(
    ("pod", "previous", "text"),
    [
        (
            fakes.pod(state={"waiting": {"reason": "ContainerCreating"}}),
            False,
            'container "c" in pod "p" is waiting to start: ContainerCreating',
        ),
        (
            fakes.pod(state={"waiting": {"reason": "ErrImagePull"}}),
            False,
            'container "c" in pod "p" is waiting to start: image can\'t be pulled',
        ),
        (
            fakes.pod(state={"waiting": {"reason": "ImagePullBackOff"}}),
            False,
            'container "c" in pod "p" is waiting to start: trying and failing to pull image',
        ),
        (fakes.pod(state={}), False, 'container "c" in pod "p" is waiting to start - no logs yet'),
        (fakes.pod(state=fakes.RUNNING), True, 'previous terminated container "c" in pod "p" not found'),
        ({"metadata": {"name": "p"}}, False, 'container "c" in pod "p" is not available'),
    ],
)
def test_refusals_are_the_kubelets(pod: dict[str, Any], previous: bool, text: str) -> None:  # noqa: FBT001 - a parameter
    """Users and tests know these texts."""
    with pytest.raises(errors.Rejected) as caught:
        logs.choose(pod, "c", previous=previous)
    assert str(caught.value) == text


def test_a_container_that_never_ran_is_refused_unless_there_is_a_log() -> None:
    """A queued job that was cancelled leaves a terminated status without a container id."""
    run = logs.choose(fakes.pod(state={"terminated": {"exitCode": 137}}), "c", previous=False)
    assert run == logs.Run((0,), 'container "c" in pod "p" is terminated')


@pytest.mark.parametrize(
    ("tail", "expected"), [(None, "a\nb\nno end"), (0, ""), (1, "no end"), (2, "b\nno end"), (9, "a\nb\nno end")]
)
async def test_reads_a_log(tmp_path: Path, tail: int | None, expected: str) -> None:
    """The whole log or its last entries, with a last line that the program did not end."""
    path = tmp_path / "0.log"
    path.write_bytes(line("a") + line("b") + line("no end", tag="P"))
    assert (await everything(path, query(tail=tail))).decode() == expected


async def test_limit_cuts_mid_line(tmp_path: Path) -> None:
    """No byte more than asked for, also where a stamp is cut, and also for one who follows."""
    path = tmp_path / "0.log"
    path.write_bytes(line("abcdef") * 3)
    assert await everything(path, query(limit_bytes=9)) == b"abcdef\nab"
    assert await everything(path, query(limit_bytes=4, timestamps=True)) == b"2026"
    pods = fakes.FakePods()
    pods.put(fakes.pod(state=fakes.RUNNING))
    follower = logs.Follower(pods, fakes.pod(state=fakes.RUNNING), "c", count=0)
    blocks = [block async for block in logs.stream(str(path), query(limit_bytes=9), follower=follower)]
    assert b"".join(blocks) == b"abcdef\nab"


async def test_an_entry_whose_writer_died_is_shown(tmp_path: Path) -> None:
    """The last words of a node that crashed, without their newline, are not lost."""
    path = tmp_path / "0.log"
    path.write_bytes(line("a") + line("last words")[:-3])
    assert await everything(path, query()) == b"a\nlast wor"
    assert await everything(path, query(tail=1)) == b"a\nlast wor"
    assert await everything(path, query(tail=0)) == b""


async def test_no_file_is_an_empty_log(tmp_path: Path) -> None:
    """A container that is just starting has no file yet."""
    assert await everything(tmp_path / "0.log", query(tail=3)) == b""


async def test_a_log_that_grows_while_it_is_read_ends(tmp_path: Path) -> None:
    """Without follow, what is written after the start is left out: a fast writer cannot hold the reader."""
    path = tmp_path / "0.log"
    path.write_bytes(line("x" * 1000) * 300)
    out = b""
    async with contextlib.aclosing(logs.stream(str(path), query())) as blocks:
        async for block in blocks:
            out += block
            with path.open("ab") as file:
                file.write(line("late"))
    assert out == (b"x" * 1000 + b"\n") * 300


class Following:
    """A reader that follows the log of container c, and what it got so far."""

    def __init__(self, path: Path, wanted: logquery.Query | None = None) -> None:
        self.pods = fakes.FakePods()
        self.pods.put(fakes.pod(state=fakes.RUNNING))
        self.got = b""
        self._news = asyncio.Event()
        follower = logs.Follower(self.pods, fakes.pod(state=fakes.RUNNING), "c", count=0)
        self._stream = logs.stream(str(path), wanted or query(follow=True), follower=follower)
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for block in self._stream:
            self.got += block
            self._news.set()

    async def until(self, expected: bytes) -> None:
        """Wait until exactly this was read."""
        while self.got != expected:
            assert expected.startswith(self.got)
            self._news.clear()
            await self._news.wait()

    async def idle(self) -> None:
        """Wait until the reader has read all that there is."""
        self.pods.waiting.clear()
        await self.pods.waiting.wait()


async def test_follow_waits_for_the_file_and_for_more(tmp_path: Path) -> None:
    """From before the first byte to the last: everything once, in order, then the end."""
    path = tmp_path / "0.log"
    reader = Following(path)
    await reader.idle()
    path.write_bytes(line("one"))
    await reader.until(b"one\n")
    await reader.idle()
    with path.open("ab", buffering=0) as file:
        file.write(line("two")[:20])
        await reader.idle()
        assert reader.got == b"one\n"
        file.write(line("two")[20:] + line("end", tag="P"))
    reader.pods.put(fakes.pod(state=fakes.ENDED))
    await reader.task
    assert reader.got == b"one\ntwo\nend"


@pytest.mark.parametrize(
    "after",
    [
        fakes.pod(state=fakes.ENDED),
        fakes.pod(state=WAITING, lastState=fakes.ENDED),
        fakes.pod(state=fakes.RUNNING, restartCount=1, lastState=fakes.ENDED),
        fakes.pod(state=fakes.RUNNING, uid="another"),
        fakes.pod(state=fakes.RUNNING, phase="Failed"),
        None,
    ],
)
async def test_follow_ends_with_the_run(tmp_path: Path, after: dict[str, Any] | None) -> None:
    """An end, a restart, a new pod of the same name, a lost node, a deletion: each ends the log, at its last byte."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one"))
    reader = Following(path)
    await reader.until(b"one\n")
    await reader.idle()
    with path.open("ab") as file:
        file.write(line("two"))
    if after is None:
        reader.pods.remove("a", "p")
    else:
        reader.pods.put(after)
    await reader.task
    assert reader.got == b"one\ntwo\n"


async def test_follow_reads_on_if_the_run_ends_during_a_read(tmp_path: Path) -> None:
    """Bytes that came between our last look and the end are not lost, and the end is not missed."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one"))
    pods = fakes.FakePods()
    running = fakes.pod(state=fakes.RUNNING)
    pods.put(running)
    reads = 0

    async def offload(function: Any, *arguments: Any) -> Any:
        nonlocal reads
        found = function(*arguments)
        reads += 1
        if found is None:  # the reader is at the end of the file: now everything happens at once
            with path.open("ab") as file:
                file.write(line("two"))
            pods.put(fakes.pod(state=fakes.ENDED))
        return found

    follower = logs.Follower(pods, running, "c", count=0)
    got = b""
    async for block in logs.stream(str(path), query(follow=True), follower=follower, offload=offload):
        got += block
        if got == b"one\ntwo\n":
            path = tmp_path / "unused"  # only the first end is staged
    assert got == b"one\ntwo\n"


async def test_follow_with_a_tail_starts_there(tmp_path: Path) -> None:
    """The last lines, then all that comes."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one") + line("two"))
    reader = Following(path, query(follow=True, tail=1))
    await reader.until(b"two\n")
    with path.open("ab") as file:
        file.write(line("three"))
    await reader.until(b"two\nthree\n")
    reader.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader.task


async def test_follow_survives_a_file_system_that_fails_for_a_while(tmp_path: Path) -> None:
    """A stale handle or an I/O error is no end of the log."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one"))
    pods = fakes.FakePods()
    running = fakes.pod(state=fakes.RUNNING)
    pods.put(running)
    failures = [OSError(116, "Stale file handle"), OSError(5, "Input/output error")]

    async def offload(function: Any, *arguments: Any) -> Any:
        if failures:
            pods.put(running)
            raise failures.pop()
        pods.put(fakes.pod(state=fakes.ENDED))
        return function(*arguments)

    follower = logs.Follower(pods, running, "c", count=0)
    blocks = [b async for b in logs.stream(str(path), query(follow=True), follower=follower, offload=offload)]
    assert b"".join(blocks) == b"one\n"


def parts(path: Path, *texts: str, first: int = 0) -> None:
    """A log in parts, each with lines of one second each."""
    number = 0
    for part, text in enumerate(texts, start=first):
        entries = []
        for word in text.split():
            entries.append(line(word).replace(b"00:00:00", b"00:00:%02d" % number))
            number += 1
        Path(jobdir.log_part(str(path), part)).write_bytes(b"".join(entries))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (query(), "a b c d e f g"),
        (query(tail=1), "g"),
        (query(tail=2), "f g"),
        (query(tail=3), "e f g"),
        (query(tail=6), "b c d e f g"),
        (query(tail=99), "a b c d e f g"),
        (query(tail=0), ""),
        (query(since_ns=1767225600 * 10**9), "a b c d e f g"),
        (query(since_ns=1767225604 * 10**9), "e f g"),
        (query(since_ns=1767225606 * 10**9), "g"),
        (query(since_ns=1767225700 * 10**9), ""),
        (query(since_ns=1767225603 * 10**9, tail=2), "f g"),
        (query(since_ns=1767225606 * 10**9, tail=6), "g"),
        (query(limit_bytes=9), "a b c d e"[:9]),
    ],
)
async def test_the_parts_of_a_rotated_log_are_one_log(tmp_path: Path, wanted: logquery.Query, expected: str) -> None:
    """All that is kept, whichever file it is in, and whatever number the first has."""
    path = tmp_path / "0.log"
    parts(path, "a b c", "d e", "f", "g", first=7)
    (tmp_path / "0.log.old").touch()
    assert (await everything(path, wanted)).decode().split() == expected.split()


async def test_follow_goes_on_in_the_next_part(tmp_path: Path) -> None:
    """Also when the last bytes of a part come together with the next one."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one"))
    reader = Following(path)
    await reader.until(b"one\n")
    await reader.idle()
    with path.open("ab") as file:
        file.write(line("two") + line("th", tag="P"))
    (tmp_path / "0.log.1").write_bytes(line("ree"))
    await reader.until(b"one\ntwo\nthree\n")
    reader.pods.put(fakes.pod(state=fakes.ENDED))
    await reader.task
    assert reader.got == b"one\ntwo\nthree\n"


async def test_follow_says_where_the_log_was_rotated_away(tmp_path: Path) -> None:
    """A reader that is slower than the container misses lines, and is told so."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one") + line("cut")[:-2])
    reader = Following(path)
    await reader.until(b"one\n")
    await reader.idle()
    path.unlink()
    (tmp_path / "0.log.3").write_bytes(line("four"))
    await reader.until(b"one\ncu\n[hpk: the log was rotated before all of it was read here]\nfour\n")
    reader.pods.put(fakes.pod(state=fakes.ENDED))
    await reader.task


async def test_who_does_not_follow_reads_no_further_than_at_the_first_look(tmp_path: Path) -> None:
    """Also across parts: a container that never stops writing must not keep a reader for ever."""
    path = tmp_path / "0.log"
    parts(path, "a", "b")
    got = b""
    async for block in logs.stream(str(path), query()):
        got += block
        with (tmp_path / "0.log.1").open("ab") as file:
            file.write(line("later"))
        (tmp_path / "0.log.2").write_bytes(line("later"))
    assert got == b"a\nb\n"


def held_files() -> list[Path]:
    """What this process has open."""
    held = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            held.append(descriptor.readlink())
    return held


async def test_a_reader_holds_no_descriptor_while_it_waits(tmp_path: Path) -> None:
    """A hundred forgotten kubectl logs -f cost no files."""
    path = tmp_path / "0.log"
    path.write_bytes(line("one"))
    reader = Following(path)
    await reader.idle()
    assert path not in held_files()
    reader.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader.task


@pytest.mark.parametrize("wanted", [query(since_ns=1767225604 * 10**9), query(tail=4)])
async def test_only_the_end_of_a_large_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: logquery.Query
) -> None:
    """A client that asks for the last ten seconds does not wait for gigabytes; nor is it read in the event loop."""
    path, read, loop = tmp_path / "0.log", logs._read, threading.get_ident()
    old = line("old") * 10_000
    recent = b"".join(f"2026-01-01T00:00:0{n}.000000000Z stdout F {n}\n".encode() for n in range(4, 8))
    for part, more in enumerate((b"", b"", recent)):
        jobdir.write_bytes(jobdir.log_part(str(path), part), old + more)
    counted: list[int] = []

    def counting(name: str, offset: int, count: int) -> bytes:
        assert threading.get_ident() != loop
        found = read(name, offset, count)
        counted.append(len(found))
        return found

    monkeypatch.setattr(logs, "_read", counting)
    assert await everything(path, wanted) == b"4\n5\n6\n7\n"
    assert sum(counted) < len(old)
