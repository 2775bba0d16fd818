"""CRI logs: framing, and disks that do not take them."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpk import jobdir
from hpk.agent.life import capturing, logs, messages
from tests import virtual, waiting

AT = 1_476_317_289_669_794_202


def read_back(text: bytes) -> bytes:
    """What kubectl would print: partial lines joined."""
    out = b""
    for line in (
        text.splitlines(keepends=True) if b"\r" not in text else [part + b"\n" for part in text.split(b"\n")[:-1]]
    ):
        _, stream, tag, content = line.split(b" ", 3)
        assert stream == b"stdout"
        out += content if tag == b"F" else content[:-1]
    return out


def test_a_line_is_stamped_and_tagged() -> None:
    """The format is containerd's, to the nanosecond."""
    framer = logs.Framer("stderr")
    assert framer.feed(b"text\n", at_ns=AT) == b"2016-10-13T00:08:09.669794202Z stderr F text\n"


def test_a_stream_without_a_last_newline_ends_in_a_partial_line() -> None:
    """So that readers do not invent a newline."""
    framer = logs.Framer("stdout")
    assert framer.feed(b"no newline", at_ns=AT) == b""
    assert framer.close(at_ns=AT).endswith(b" stdout P no newline\n")
    assert framer.close(at_ns=AT) == b""


def test_a_long_line_is_cut_at_16_kib() -> None:
    """Nothing is held in memory beyond that, and the parts are marked."""
    framer = logs.Framer("stdout")
    text = framer.feed(b"x" * 40_000, at_ns=AT)
    assert [len(line.split(b" ", 3)[3]) for line in text.splitlines()] == [16384, 16384]
    assert all(b" P " in line for line in text.splitlines())


@given(st.lists(st.binary(max_size=40_000), max_size=8))
def test_no_byte_is_lost_however_it_arrives(chunks: list[bytes]) -> None:
    """What is read back from the log is what was written, whatever the chunks."""
    framer = logs.Framer("stdout")
    text = b"".join(framer.feed(chunk, at_ns=AT) for chunk in chunks) + framer.close(at_ns=AT)
    assert read_back(text.replace(b"\r", b"\x01")) == b"".join(chunks).replace(b"\r", b"\x01")


class Recorder:
    """Remembers what was told."""

    def __init__(self) -> None:
        self.told: list[str] = []


async def test_output_reaches_the_file_and_the_end_is_awaited(tmp_path: Path) -> None:
    """When finish returns, all that the container wrote is in the file."""
    writer, troubles = logs.Writer(asyncio.get_running_loop()), Recorder()
    path = tmp_path / "c" / "0.log"
    ours, theirs = os.pipe()
    file = logs.LogFile(str(path), on_trouble=troubles.told.append)
    capture = capturing.Capture({"stdout": ours}, file=file, writer=writer)
    os.write(theirs, b"one\ntwo")
    os.close(theirs)
    await capture.finish(timeout_seconds=60)
    assert [line.split(b" ", 1)[1] for line in path.read_bytes().splitlines()] == [b"stdout F one", b"stdout P two"]
    assert not troubles.told
    assert path.stat().st_mode & 0o777 == 0o600
    writer.close()


async def test_a_disk_that_refuses_does_not_hold_the_container(tmp_path: Path) -> None:
    """The output is lost, once an event says so, and the container's pipe is drained all the same."""
    (tmp_path / "c").write_text("a file where the directory should be")
    writer, troubles = logs.Writer(asyncio.get_running_loop()), Recorder()
    ours, theirs = os.pipe()
    file = logs.LogFile(str(tmp_path / "c" / "0.log"), on_trouble=troubles.told.append)
    capture = capturing.Capture({"stdout": ours}, file=file, writer=writer)
    for _ in range(4):
        await asyncio.to_thread(os.write, theirs, b"x" * 60_000 + b"\n")
    os.close(theirs)
    await capture.finish(timeout_seconds=60)
    assert len(troubles.told) == 1
    assert "Cannot write" in troubles.told[0]
    writer.close()


def test_what_was_lost_is_said_when_the_disk_works_again(tmp_path: Path) -> None:
    """A gap in a log is visible in the log."""
    file = logs.LogFile(str(tmp_path / "0.log"), on_trouble=print)
    file.add_lost(123)
    assert file.write(b"2016 stdout F on\n") is None
    assert b"123 bytes of log were lost here" in (tmp_path / "0.log").read_bytes()
    file.close()


async def test_a_disk_that_hangs_loses_output_after_some_patience(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container goes on without its log, and the log resumes when the disk does."""
    monkeypatch.setattr(logs, "_MOST_WAITING", 1000)
    troubles = Recorder()
    writer = logs.Writer(asyncio.get_running_loop())
    file = logs.LogFile(str(tmp_path / "0.log"), on_trouble=troubles.told.append)
    hang, hangs = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    resumed = asyncio.run_coroutine_threadsafe
    real = file.write

    def slow(data: bytes) -> OSError | None:
        if data:
            loop.call_soon_threadsafe(hangs.set)
            resumed(hang.wait(), loop).result()
        return real(data)

    monkeypatch.setattr(file, "write", slow)
    ours, theirs = os.pipe()
    capture = capturing.Capture({"stdout": ours}, file=file, writer=writer)

    def write() -> None:
        for _ in range(8):
            os.write(theirs, b"x" * 40_000 + b"\n")
        os.close(theirs)

    writing = asyncio.create_task(asyncio.to_thread(write))
    await hangs.wait()
    await waiting.turns()
    virtual.pass_at_once(capturing.PATIENCE_SECONDS, monkeypatch)
    await writing
    assert len(troubles.told) == 1
    hang.set()
    await capture.finish(timeout_seconds=60)
    assert (tmp_path / "0.log").read_bytes().count(b"\n") < 8 * 3
    writer.close()


def test_the_message_is_the_end_of_the_file(tmp_path: Path) -> None:
    """Of an oversize termination message the last 4096 bytes count."""
    file = tmp_path / "message"
    file.write_bytes(b"x" * 5000 + b"END")
    text = messages.termination_message(str(file), policy="File", exit_code=0, log=b"")
    assert text == "x" * 4093 + "END"


@pytest.mark.parametrize(
    ("content", "policy", "exit_code", "expected"),
    [
        (b"", "FallbackToLogsOnError", 3, "almost\ncannot\n"),
        (b"", "FallbackToLogsOnError", 0, ""),
        (b"", "File", 3, ""),
        (b"file", "FallbackToLogsOnError", 3, "file"),
    ],
)
def test_the_log_speaks_only_for_a_failure_without_a_message(
    tmp_path: Path, content: bytes, policy: str, exit_code: int, expected: str
) -> None:
    """FallbackToLogsOnError needs an empty file and a non-zero exit code."""
    (tmp_path / "message").write_bytes(content)
    log = b"2016 stdout F almost\n2016 stderr P can\n2016 stderr F not\n"
    text = messages.termination_message(str(tmp_path / "message"), policy=policy, exit_code=exit_code, log=log)
    assert text == expected


def test_the_log_s_end_is_80_lines_and_2048_bytes() -> None:
    """The kubelet's limits."""
    lines = b"".join(b"2016 stdout F %d\n" % number for number in range(200))
    assert messages.log_end(lines).startswith(b"120\n")
    assert len(messages.log_end(b"2016 stdout F " + b"x" * 5000 + b"\n")) == 2048


def lines_of(path: Path, parts: list[int]) -> list[bytes]:
    """The texts of a log's parts, in order."""
    data = b"".join(Path(jobdir.log_part(str(path), part)).read_bytes() for part in parts)
    return [line.split(b" ", 3)[3] for line in data.splitlines()]


def test_a_line_that_was_cut_ends_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what says that something is missing would be the rest of a line, or of no entry at all."""
    file = logs.LogFile(str(tmp_path / "0.log"), on_trouble=print)
    write = os.write

    def full(descriptor: int, data: memoryview) -> int:
        monkeypatch.setattr(os, "write", no_room)
        return write(descriptor, data[:12])

    def no_room(_descriptor: int, _data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert file.write(b"2016-10-06T00:17:09.669794202Z stdout F one\n")
    monkeypatch.setattr(os, "write", write)
    assert file.write(b"2016-10-06T00:17:10.669794202Z stdout F two\n") is None
    cut, lost, two = (tmp_path / "0.log").read_bytes().splitlines()
    assert (cut, two[-3:]) == (b"2016-10-06T0", b"two")
    assert lost.endswith(b"Z stderr F [hpk: 44 bytes of log were lost here]")


async def test_a_disk_that_refuses_when_a_log_is_closed_does_not_fail_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS says so then; it is told as any loss, and the descriptor, which is gone, is not used again."""
    troubles, writer = Recorder(), logs.Writer(asyncio.get_running_loop())
    ours, theirs = os.pipe()
    file = logs.LogFile(str(tmp_path / "0.log"), on_trouble=troubles.told.append)
    capture = capturing.Capture({"stdout": ours}, file=file, writer=writer)
    os.write(theirs, b"one\n")
    os.close(theirs)
    assert await writer.flushed(timeout_seconds=2)
    log, close = file._descriptor, os.close

    def refusing(descriptor: int) -> None:
        close(descriptor)
        if descriptor == log:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(os, "close", refusing)
    await capture.finish(timeout_seconds=2)
    monkeypatch.undo()
    assert troubles.told == [f"Cannot write {tmp_path}/0.log: Disk quota exceeded; output is lost until it works again"]
    assert file._descriptor == -1
    writer.close()


def test_a_full_log_goes_on_in_the_next_part_and_the_oldest_goes(tmp_path: Path) -> None:
    """A container that never stops writing takes so many files of such a size, and the newest lines are there."""
    path = tmp_path / "c" / "0.log"
    file = logs.LogFile(str(path), on_trouble=lambda _why: None, limits=logs.Limits(file_bytes=1000, files=3))
    framer = logs.Framer("stdout")
    for number in range(200):
        assert file.write(framer.feed(b"%d\n" % number, at_ns=AT)) is None
    file.close()
    parts = jobdir.log_parts(str(path))
    assert len(parts) == 3
    assert parts[0] > 0
    assert all(Path(jobdir.log_part(str(path), part)).stat().st_size <= 1000 for part in parts)
    kept = lines_of(path, parts)
    assert kept == [b"%d" % number for number in range(200 - len(kept), 200)]


def test_of_the_runs_before_one_log_is_kept(tmp_path: Path) -> None:
    """As the kubelet keeps one dead container: a crash loop does not fill the home; foreign files are left alone."""
    directory = tmp_path / "c"
    for number in range(12):
        file = logs.LogFile(str(directory / f"{number}.log"), on_trouble=lambda _why: None)
        assert file.write(b"") is None
        file.close()
        (directory / f"{number}.log.1").touch()
        (directory / "notes.txt").touch()
    assert sorted(one.name for one in directory.iterdir()) == ["10.log", "10.log.1", "11.log", "11.log.1", "notes.txt"]


async def test_a_writer_outlives_whatever_is_wrong_with_one_file(tmp_path: Path) -> None:
    """Another container's log is written all the same, and the fault is told."""
    writer, told = logs.Writer(asyncio.get_running_loop()), Recorder()
    broken = logs.LogFile(str(tmp_path / "no-number"), on_trouble=told.told.append)
    sound = logs.LogFile(str(tmp_path / "0.log"), on_trouble=told.told.append)
    writer.put(broken, b"1\n")
    writer.put(sound, b"2\n")
    assert await writer.flushed(timeout_seconds=60)
    assert (tmp_path / "0.log").read_bytes() == b"2\n"
    assert "output is lost" in told.told[0]
    writer.close()


async def test_what_cannot_be_copied_does_not_stop_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipe is read on: a container whose output nobody takes would end of it."""
    writer = logs.Writer(asyncio.get_running_loop())
    file = logs.LogFile(str(tmp_path / "0.log"), on_trouble=lambda _why: None)
    ours, theirs = os.pipe()
    capture = capturing.Capture({"stdout": ours}, file=file, writer=writer)
    put = capture._put
    faults = iter([RuntimeError("a fault")])

    def put_once(data: bytes) -> None:
        if data and (error := next(faults, None)):
            raise error
        put(data)

    monkeypatch.setattr(capture, "_put", put_once)
    os.write(theirs, b"one\n")
    await waiting.until(lambda: file._lost)
    os.write(theirs, b"two\n")
    os.close(theirs)
    await capture.finish(timeout_seconds=60)
    assert [line.split(b" ", 1)[1] for line in (tmp_path / "0.log").read_bytes().splitlines()] == [
        b"stderr F [hpk: 4 bytes of log were lost here]",
        b"stdout F two",
    ]
    writer.close()
