"""Limits on the use of the node's disk, by measuring now and then: quotas need root.

As with the kubelet, a pod that is found over a limit is ended. The measure is that of du, for emptyDirs, writable
layers and logs.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import records
    from hpk.agent.boot import sandbox

PERIOD_SECONDS = 10.0
LEAST_REST = 20
"""Pause between measurements, as a multiple of the last one's duration: large trees must not keep the disk busy."""
_BLOCK_BYTES = 512


class GivenUp(Exception):
    """Nobody waits for the measurement any more."""


class DiskMeter:
    """Measures one pod's directories; blocks, so call it in a thread."""

    def __init__(self, box: sandbox.PodSandbox) -> None:
        self._box = box
        self.is_given_up = False

    def exceeded(self, limits: list[records.DiskLimit]) -> records.DiskLimit | None:
        """Return the first limit that is exceeded, or None.

        Raises:
            GivenUp: ``is_given_up`` was set.
        """
        sizes: dict[str, int] = {}

        def used(path: str) -> int:
            if path not in sizes:
                sizes[path] = self._used(path)
            return sizes[path]

        return next((one for one in limits if sum(map(used, self._paths(one))) > one["bytes"]), None)

    def _paths(self, limit: records.DiskLimit) -> list[str]:
        plan = self._box.plan
        if limit["kind"] == "volume":
            return [self._box.volumes.directory(limit["name"])]
        if limit["kind"] == "container":
            return self._of_container(limit["name"])
        on_disk = [v["name"] for v in plan["volumes"] if v["kind"] == "empty_dir" and v.get("medium") != "Memory"]
        paths = [self._box.volumes.directory(name) for name in on_disk]
        return [*paths, *(path for one in plan["containers"] for path in self._of_container(one["name"]))]

    def _of_container(self, name: str) -> list[str]:
        """Return its runs' writable layers, and its logs; the merged view of a layer includes the image."""
        roots = os.path.join(self._box.places.scratch, "roots")
        runs = [run for run in _names(roots) if run.rpartition("-")[0] == name]
        layers = [os.path.join(roots, run, part) for run in runs for part in ("upper", "work")]
        return [*layers, os.path.join(self._box.places.pod.logs, name)]

    def _used(self, path: str) -> int:
        """Return a directory's disk usage in bytes; count hard links once, and skip other file systems."""
        seen: set[int] = set()
        total, open_directories = 0, [path]
        try:
            device = os.lstat(path).st_dev
        except OSError:
            return 0  # not there yet, or no more
        while open_directories:
            if self.is_given_up:
                raise GivenUp
            directory = open_directories.pop()
            try:
                with os.scandir(directory) as entries:
                    for entry in entries:
                        status = _status(entry)
                        if status is None or status.st_dev != device or status.st_ino in seen:
                            continue
                        if status.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
                            seen.add(status.st_ino)
                        total += status.st_blocks * _BLOCK_BYTES
                        if entry.is_dir(follow_symlinks=False):
                            open_directories.append(entry.path)
            except OSError:
                continue  # removed while we look
        return total


async def watch(box: sandbox.PodSandbox, *, on_exceeded: Callable[[str], None]) -> None:
    """Measure every ten seconds, or less often if that takes long; call back once, when a limit is exceeded."""
    limits = box.plan.get("disk_limits") or []
    meter, pause = DiskMeter(box), PERIOD_SECONDS
    try:
        while limits:
            await asyncio.sleep(pause)
            began_at = time.monotonic()
            found = await asyncio.to_thread(meter.exceeded, limits)
            if found is not None:
                on_exceeded(found["message"])
                return
            pause = max(PERIOD_SECONDS, LEAST_REST * (time.monotonic() - began_at))
    except GivenUp:
        return
    finally:
        meter.is_given_up = True


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except OSError:
        return None


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
