"""A host of the simulated cluster whose clock is off: its Python, and whatever runs in its Apptainer containers."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import jobdir
from tests import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).with_name("clock.c")
DIRECTORY = "/var/tmp/clock"
# First in PATH, before /usr/bin: what jobs on this host start. Bound to a place that pods seldom use.
WRAPPERS = {
    "python3": f'export LD_PRELOAD={DIRECTORY}/clock.so\nexec /usr/bin/python3 "$@"',
    "apptainer": f"export APPTAINERENV_LD_PRELOAD={jobdir.SANDBOX_HOST}/clock.so"
    f' APPTAINER_BIND={DIRECTORY}:{jobdir.SANDBOX_HOST}\nexec /usr/bin/apptainer "$@"',
}


@contextlib.contextmanager
def off(host: str, *, ahead_seconds: int) -> Iterator[None]:
    """While the block lasts, what starts on the host has a clock that is ahead; behind, if negative."""
    _write(f"{DIRECTORY}/clock.so", _built(ahead_seconds), host)
    names = [f"/usr/local/bin/{name}" for name in WRAPPERS]
    try:
        for name, text in WRAPPERS.items():
            _write(f"/usr/local/bin/{name}", f"#!/bin/sh\n{text}\n".encode(), host)
        yield
    finally:
        cluster.run("rm", "-rf", DIRECTORY, *names, user="root", host=host)


def _built(ahead_seconds: int) -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory) / "clock.so"
        options = ["-shared", "-fPIC", "-O1", f"-DAHEAD_SECONDS={ahead_seconds}", "-o", str(target), str(SOURCE)]
        subprocess.run(["gcc", *options], check=True)
        return target.read_bytes()


def _write(path: str, content: bytes, host: str) -> None:
    script = 'mkdir -p "${1%/*}" && cat >"$1" && chmod 755 "${1%/*}" "$1"'
    cluster.run("sh", "-c", script, "sh", path, user="root", host=host, stdin=content)
