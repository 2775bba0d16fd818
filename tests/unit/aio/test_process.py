"""Children: real /bin/sh."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.aio import process
from tests import virtual, waiting

if TYPE_CHECKING:
    from pathlib import Path

ENV = {"PATH": "/usr/bin:/bin"}


async def start(script: str, tmp_path: Path) -> process.Process:
    """A shell as a child."""
    return await process.start("child", ["/bin/sh", "-c", script], env=ENV, log=tmp_path / "log")


async def said(child: process.Process, line: str) -> None:
    """Wait until the child has written the line."""
    await waiting.until(lambda: line in child.last_lines)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - no path arithmetic
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_exit_code_output_and_log(tmp_path: Path) -> None:
    """Stdout and stderr are in the log (0600) and the last lines, and the exit code is the child's."""
    child = await start("echo out; echo err >&2; printf 'no newline'; exit 7", tmp_path)
    assert await child.wait() == 7
    assert child.last_lines == ["out", "err", "no newline"]
    assert (tmp_path / "log").read_text() == "out\nerr\nno newline"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600
    assert await child.stop(grace_seconds=1) == 7


async def test_only_the_last_lines_are_kept(tmp_path: Path) -> None:
    """However much a child writes, twenty bounded lines stay in memory."""
    child = await start("seq 1 5000; head -c 100000 /dev/zero | tr '\\0' x", tmp_path)
    await child.wait()
    assert len(child.last_lines) == 20
    assert child.last_lines[:-1] == [str(number) for number in range(4982, 5001)]
    assert len(child.last_lines[-1]) == 2000


async def test_the_environment_is_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of ours is inherited, a proxy least of all."""
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    child = await start("env", tmp_path)
    await child.wait()
    assert not any("PROXY" in line for line in child.last_lines)


async def test_term_is_enough_for_the_polite(tmp_path: Path) -> None:
    """A child that handles SIGTERM ends by itself, with its own exit code."""
    child = await start("trap 'exit 3' TERM; echo up; while :; do sleep 0.01; done", tmp_path)
    await said(child, "up")
    assert await child.stop(grace_seconds=60) == 3


async def test_kill_for_the_stubborn_and_all_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that ignores SIGTERM is killed after the grace, and its children with it."""
    child = await start("trap '' TERM; sleep 100 & echo $!; echo up; wait", tmp_path)
    await said(child, "up")
    grandchild = int(child.last_lines[0])
    stopping = asyncio.create_task(child.stop(grace_seconds=3600))
    await waiting.turns()
    virtual.pass_at_once(3600, monkeypatch)
    assert await stopping == -signal.SIGKILL
    assert not is_alive(child.pid)
    await waiting.until(lambda: not is_alive(grandchild))


async def test_cancelling_a_stop_leaves_nothing(tmp_path: Path) -> None:
    """Impatience cuts the grace short and still ends the child."""
    child = await start("trap '' TERM; echo up; while :; do sleep 0.01; done", tmp_path)
    await said(child, "up")
    stopping = asyncio.create_task(child.stop(grace_seconds=100))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert child.exit_code == -signal.SIGKILL


async def test_own_process_group(tmp_path: Path) -> None:
    """A terminal's ^C does not reach the child."""
    child = await start("echo up; exec sleep 100", tmp_path)
    await said(child, "up")
    assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    await child.stop(grace_seconds=1)


async def test_nothing_outlives_us(tmp_path: Path) -> None:
    """When we are killed, so is the child, by the kernel."""
    script = f"""
import asyncio, os, pathlib
from hpk.aio import process
async def main():
    child = await process.start("child", ["sleep", "100"], env={ENV}, log=pathlib.Path({str(tmp_path / "log")!r}))
    while pathlib.Path(f"/proc/{{child.pid}}/comm").read_text() != "sleep\\n":
        await asyncio.sleep(0.005)
    print(child.pid, flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    ours = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    output, _ = await ours.communicate()
    await waiting.until(lambda: not is_alive(int(output)))


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    """What cannot be started says which program."""
    with pytest.raises(errors.Fatal, match="Cannot start it: /nowhere/it"):
        await process.start("it", ["/nowhere/it"], env=ENV, log=tmp_path / "log")


async def test_a_log_without_a_directory_ends_nothing(tmp_path: Path) -> None:
    """On a full home no file can be made: the program starts all the same, and its log when it can."""
    child = await process.start("it", ["/bin/echo", "well"], env=ENV, log=tmp_path / "later" / "log")
    assert await child.wait() == 0
    assert child.last_lines == ["well"]
    log = process.Log(tmp_path / "later" / "log")
    assert not log.write(b"lost")
    (tmp_path / "later").mkdir()
    assert log.write(b"kept")
    log.close()
    assert (tmp_path / "later" / "log").read_bytes() == b"kept"


def test_a_full_log_is_turned_over(tmp_path: Path) -> None:
    """Two files at most, each about as long as allowed."""
    log = process.Log(tmp_path / "log", most_bytes=100)
    for _ in range(50):
        log.write(b"0123456789")
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert all(path.stat().st_size <= 110 for path in tmp_path.iterdir())


def test_a_log_that_cannot_be_written_is_no_trouble(tmp_path: Path) -> None:
    """A full disk loses lines and nothing else."""
    (tmp_path / "full").symlink_to("/dev/full")
    log = process.Log(tmp_path / "full")
    assert not log.write(b"lost")
    log.close()


def test_a_log_that_cannot_be_turned_over_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for a new file the descriptor is not given away: its number is another file's soon."""
    log = process.Log(tmp_path / "log", most_bytes=3)
    assert log.write(b"full")
    monkeypatch.setattr("os.open", lambda *_: (_ for _ in ()).throw(OSError(122, "full")))
    assert not log.write(b"lost")
    monkeypatch.undo()
    assert log.write(b"kept")
    log.close()
    assert (tmp_path / "log").read_bytes() == b"kept"
