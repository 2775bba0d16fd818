"""Work directories of pulls, on the images' file system, and the removal of those of crashed pulls.

``tmp/<host>-<pid>-<random>``: two containers of a host may have the same process ids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import time
from typing import TYPE_CHECKING, Final

from hpk import jobdir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CRASHED_SECONDS: Final = 3600.0
"""Age at which a directory whose process is not found is removed: it may run in another PID namespace."""
ABANDONED_SECONDS: Final = 2 * 86400.0


@contextlib.contextmanager
def made(images: Path) -> Iterator[Path]:
    """Make a directory for one pull and remove it afterwards.

    Raises:
        OSError: The file system refused.
    """
    _sweep(images / "tmp")
    path = images / "tmp" / f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
    jobdir.make_directory(str(path))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(directory: Path) -> None:
    now = time.time()
    with contextlib.suppress(FileNotFoundError):
        for path in list(directory.iterdir()):
            host, _, rest = path.name.rpartition("-")[0].rpartition("-")
            is_crashed = host == socket.gethostname() and rest.isdecimal() and not _is_alive(int(rest))
            with contextlib.suppress(OSError):
                written_at = max(one.stat().st_mtime for one in (path, *path.iterdir()))  # a layer may take hours
                if now - written_at > (CRASHED_SECONDS if is_crashed else ABANDONED_SECONDS):
                    shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
