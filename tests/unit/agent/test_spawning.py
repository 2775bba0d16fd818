"""Programs that the agent starts."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from hpk.agent import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    assert [number for number in range(1, 32) if ignored >> number - 1 & 1] == []  # 32 and 33 are libc's own
