"""One control plane for a state directory."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.controlplane import lock

if TYPE_CHECKING:
    from pathlib import Path

HOLD = """
import asyncio, pathlib, sys
from hpk.controlplane import lock
async def main():
    async with lock.locked(pathlib.Path(sys.argv[1]), job_id="42", beat_seconds=0.01) as held:
        print("held", flush=True)
        await held.keep()
asyncio.run(main())
"""


async def holder(directory: Path) -> asyncio.subprocess.Process:
    """Another process that holds the directory."""
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLD, str(directory), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"held\n"
    return other


async def test_a_second_one_is_told_who_holds_it(tmp_path: Path) -> None:
    """The refusal names host and job, and says how to get out; a killed holder leaves no obstacle."""
    other = await holder(tmp_path)
    with pytest.raises(errors.Fatal, match=f"{socket.gethostname()}, Slurm job 42.*scancel 42.*HPK_STATE"):
        async with lock.locked(tmp_path, job_id=""):
            pass
    other.kill()
    await other.wait()
    async with lock.locked(tmp_path, job_id="", stale_seconds=100):
        pass


async def test_an_orderly_end_leaves_nothing_to_wait_for(tmp_path: Path) -> None:
    """After the block the directory is free for any host, at once."""
    async with lock.locked(tmp_path, job_id="1") as held:
        assert lock.read(tmp_path / "owner.json") == held.owner
        assert (tmp_path / "owner.json").stat().st_mode & 0o777 == 0o600
    assert lock.read(tmp_path / "owner.json") is None


def foreign(path: Path) -> None:
    """What a control plane of another host leaves when its node dies."""
    path.write_text(json.dumps({"host": "elsewhere", "job_id": "7", "started_at": time.time(), "token": "t"}))


async def test_another_host_that_beats_is_alive(tmp_path: Path) -> None:
    """Where the file system carries no locks between hosts, a sign of life is enough to refuse."""
    path = tmp_path / "owner.json"
    foreign(path)

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.005)
            path.touch()

    beating = asyncio.create_task(beat())
    with pytest.raises(errors.Fatal, match="host elsewhere, Slurm job 7"):
        async with lock.locked(tmp_path, job_id="", stale_seconds=5):
            pass
    beating.cancel()


async def test_another_host_that_is_silent_is_taken_over(tmp_path: Path) -> None:
    """A node that died gives no sign of life: after watching for a while the directory is ours."""
    foreign(tmp_path / "owner.json")
    async with lock.locked(tmp_path, job_id="8", stale_seconds=0.05) as held:
        assert held.owner.job_id == "8"


async def test_who_was_taken_over_ends(tmp_path: Path) -> None:
    """An owner that was only slow finds out at its next beat, ends, and leaves the new owner's file alone."""
    async with lock.locked(tmp_path, job_id="1", beat_seconds=0.01) as held:
        foreign(tmp_path / "owner.json")
        with pytest.raises(errors.Fatal, match="took it over"):
            await held.keep()
    taken = lock.read(tmp_path / "owner.json")
    assert taken is not None
    assert taken.host == "elsewhere"


async def test_a_damaged_file_is_no_obstacle(tmp_path: Path) -> None:
    """Half a file says nothing about anybody."""
    (tmp_path / "owner.json").write_text("{")
    async with lock.locked(tmp_path, job_id=""):
        pass
