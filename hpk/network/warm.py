"""Copies of hpk.sif's files on the shared file system, which a node caches from pod to pod.

Each mount of hpk.sif begins with an empty cache, so the parts of Python and gRPC that a pod's start maps pass through
squashfuse again for every pod: 20 ms of CPU, and memory that is charged to the pod's job. A plain file on the shared
file system is in the node's own cache, once for all jobs.

A copy has the mtime of its hpk.sif. The job's shell compares the two: without copies, or with those of another
hpk.sif, a sandbox starts all the same.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
from pathlib import Path
from typing import Final

import structlog

from hpk import jobdir
from hpk.network import sandbox

LOG = structlog.get_logger(__name__)

FILES: Final = (sandbox.PYTHON[1:], f"{sandbox.LIBRARY[1:]}/grpc/_cython/cygrpc.*.so")
"""Patterns below the root of hpk.sif; the last file to be copied is the stamp, so it implies all others."""


def changed_at(image: Path) -> int | None:
    """Return hpk.sif's mtime in nanoseconds, None if it cannot be read.

    Call it when the program starts: a file that replaces hpk.sif later has other contents.
    """
    try:
        return image.stat().st_mtime_ns
    except OSError:
        return None


def provide(directory: Path, *, image: Path, changed_at: int | None, root: Path = Path("/")) -> sandbox.Warmth | None:
    """Return the copies for jobs, made if missing; None if that fails, which is logged.

    Copies of other images are removed. `changed_at` is hpk.sif's mtime when this program was started from it; `root` is
    the directory of its files.
    """
    try:
        if changed_at is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(image))
        sources = [file for pattern in FILES for file in _found(root, pattern)]
        place = directory / str(changed_at)
        _make(place)
        for source in sources:
            _copy(source, place / source.name, changed_at)
        _remove_others(directory, place)
    except OSError as error:
        LOG.info("Pods start without copies of Python on the shared file system", error=str(error))
        return None
    binds = (sandbox.bind(str(place / source.name), f"/{source.relative_to(root)}", "ro") for source in sources)
    stamp = str(place / sources[-1].name)
    return sandbox.Warmth(stamp=stamp, image=str(image), options=list(itertools.chain(*binds)))


def _found(root: Path, pattern: str) -> list[Path]:
    """Return the files of a pattern; it has none if this program runs from a source tree, on another Python."""
    if not (files := sorted(root.glob(pattern))):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), f"/{pattern}")
    return files


def _make(place: Path) -> None:
    jobdir.make_directory(str(place))
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise OSError(errno.EACCES, "programs cannot be run there (noexec)", str(place))


def _copy(source: Path, target: Path, changed_at: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        found = target.stat()
        is_whole = (found.st_size, found.st_mtime_ns) == (source.stat().st_size, changed_at)
        if is_whole and os.access(target, os.R_OK | os.X_OK):
            return
    temporary = target.with_suffix(".new")  # this directory has only one control plane
    try:
        shutil.copyfile(source, temporary)
        temporary.chmod(0o700)
        os.utime(temporary, ns=(changed_at, changed_at))
        if temporary.stat().st_mtime_ns != changed_at:  # no job would use it, and each start would copy it again
            raise OSError(errno.ENOTSUP, "a file's mtime cannot be set exactly there", str(temporary))
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def _remove_others(directory: Path, place: Path) -> None:
    for other in directory.iterdir():
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
