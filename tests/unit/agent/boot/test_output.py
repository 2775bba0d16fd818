"""A job's output that takes nothing must not end who speaks."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from hpk.agent.boot import output

ROOT = Path(__file__).parents[4]


def test_a_full_disk_ends_nobody() -> None:
    """What could not be written is gone: it does not wait for the next line."""
    full, (end, ours) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    stream: Any = output.JobOutput(full)
    print("one", file=stream, flush=True)
    os.dup2(ours, full)
    print("two \udcff", file=stream)
    print("three", end="", file=stream, flush=True)
    traceback.print_exception(LookupError("four"), file=stream)
    for descriptor in (full, ours):
        os.close(descriptor)
    assert os.read(end, 4096) == b"two \\udcff\nthreeLookupError: four\n"
    os.close(end)


def test_the_agent_speaks_by_it() -> None:
    """Its first line, and with it the exit code, do not need the disk."""
    code = f"import sys; sys.path.append({str(ROOT)!r}); from hpk.agent import main; main.entry()"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", code], stdout=full, stderr=full, check=False)
    assert done.returncode == 0
