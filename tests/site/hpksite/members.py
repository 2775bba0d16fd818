"""Which processes belong to the cluster, and the end of them.

A process is known by what it is, never by its name: its network namespace is one of the cluster's,
or its root holds the hosts' marker. Those in containers may have neither, but they die with their
host's pid namespace. So the rest of a crash, or of another checkout's cluster, is found as well.
"""

import contextlib
import os
import pathlib
import signal
import time

from . import layout, network, paths, run, sh


def find(host: layout.Host | None = None) -> list[int]:
    """Return the processes of one host, or of the whole cluster."""
    wanted = network.names() if host is None else [paths.netns(host.name)]
    spaces = {_identity(pathlib.Path(paths.netns_file(name))) for name in wanted} - {None}
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        if _identity(entry / "ns/net") in spaces or _has_marker(entry / "root" / paths.MARKER, host):
            found.append(int(entry.name))
    return found


def end(host: layout.Host | None = None, *, seconds: float = 20) -> None:
    """Kill the processes of one host, or of the whole cluster, and return when none is left.

    A host's first process, once killed, has no namespaces to be found by; but it goes only after all
    that lived in its pid namespace. So the end of each that was ever found is waited for.
    """
    deadline = time.monotonic() + seconds
    seen: dict[int, str] = {}
    while True:
        for pid in find(host):
            with contextlib.suppress(OSError):  # it went by itself, or with its host's first process
                seen[pid] = run.start_time(pid)
                os.kill(pid, signal.SIGKILL)
        left = [pid for pid, started in seen.items() if _still_is(pid, started)]
        if not left:
            return
        if time.monotonic() > deadline:
            raise sh.SiteError(f"cannot end the processes {left}: they are still there after {seconds:.0f} s")
        time.sleep(0.02)


def _still_is(pid: int, started: str) -> bool:
    try:
        return run.start_time(pid) == started
    except OSError:
        return False


def _identity(path: pathlib.Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None  # the process ended while we looked, or the file is not there
    return status.st_dev, status.st_ino


def _has_marker(path: pathlib.Path, host: layout.Host | None) -> bool:
    try:
        name, _, apart = path.read_text().strip("\n").partition(" ")
    except OSError:
        return False
    return apart == paths.APART and (host is None or name == host.name)
