"""Programs that the agent starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpk.agent.boot import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[4]
IGNORED = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTSTP, signal.SIGPIPE)


@pytest.fixture
def _deaf() -> Iterator[None]:
    """A process that ignores signals, as one does that nohup or a shell's ``&`` started."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_deaf")
def test_a_program_hears_what_its_starter_ignored() -> None:
    """A shell that begins with SIGINT ignored can never trap it: Ctrl-C in an exec'd terminal would do nothing."""
    reading, writing = os.pipe()
    process = processes.spawn(["/bin/sh", "-c", "grep SigIgn /proc/self/status"], files={1: writing})
    os.close(writing)
    with os.fdopen(reading) as said:
        ignored = int(said.read().split()[1], 16)
    assert processes.exit_code(processes.wait(process)) == 0
    assert ignored == 0  # the C library's own 32 and 33 too, which os.posix_spawn has ignored


def test_blocked_signals_stay_blocked() -> None:
    """What the pod needs until its end does not hear Slurm's SIGTERM."""
    reading, writing = os.pipe()
    process = processes.spawn(
        ["/bin/grep", "SigBlk", "/proc/self/status"], files={1: writing}, blocked_signals=processes.STEADFAST
    )
    os.close(writing)
    with os.fdopen(reading) as said:
        blocked = int(said.read().split()[1], 16)
    processes.wait(process)
    assert {number for number in range(1, 65) if blocked >> number - 1 & 1} == set(processes.STEADFAST)


def test_a_program_that_is_not_there_is_named() -> None:
    """The error says which."""
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        processes.spawn(["/no/such/program"])


def test_soft_limits_become_the_hard_ones() -> None:
    """A login shell's 1,024 open files are not the containers'; stack and core files are left alone."""
    code = (
        "import resource as r; from hpk.agent.boot import linux\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (256, 512)); r.setrlimit(r.RLIMIT_CORE, (0, r.getrlimit(r.RLIMIT_CORE)[1]))\n"
        "linux.raise_limits()\n"
        "print(*r.getrlimit(r.RLIMIT_NOFILE), r.getrlimit(r.RLIMIT_CORE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split() == ["512", "512", "0"]
