"""A container's log, read from the pod's directory on the shared file system.

Which runs of a container there were, and whether one still goes on, the pod's status says; the bytes are in
``logs/<container>/<restart count>.log``, written by the agent on another host.  Shared file systems tell
nobody that a file grew (no inotify between hosts), so growth is polled; the end is not: the pod's change wakes
the reader, which then reads to the end of the file and is done.

Every read opens the file anew.  That is what makes NFS show bytes that another host wrote and closed
(close-to-open consistency), and it means that a reader who waits, or a client that is slow, holds no
descriptor.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors, jobdir
from hpk.node import cri

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hpk.node import logquery, podsource

LOG = structlog.get_logger(__name__)

BLOCK_BYTES = 128 << 10
"""Read and sent at a time: what one slow client costs, about thrice."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 1.0

Object = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """Which run of a container to show.

    Attributes:
        counts: Restart counts to look for, best first.
        refusal: What to say if there is no file of any of them; empty if the file may come.
    """

    counts: tuple[int, ...]
    refusal: str = ""


def has_container(pod: Object, container: str) -> bool:
    """Whether the pod's spec has a container of this name, of any kind."""
    spec = pod.get("spec") or {}
    kinds = ("containers", "initContainers", "ephemeralContainers")
    return any(item["name"] == container for kind in kinds for item in spec.get(kind) or [])


def choose(pod: Object, container: str, *, previous: bool) -> Run:
    """The run that a request means: the current one, or the last that ended.

    Source: validateContainerLogStatus of Kubernetes 1.37, texts included.

    Raises:
        errors.Rejected: There is none, with the text for the user.
    """
    name = pod["metadata"]["name"]
    which = f'container "{container}" in pod "{name}"'
    status = container_status(pod, container)
    if status is None:
        raise errors.Rejected(f"{which} is not available")
    count = int(status.get("restartCount") or 0)
    state = status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated")
    if previous:
        if last is None:
            raise errors.Rejected(f"previous terminated {which} not found")
        # While a container waits for its restart, the last run is the one that is counted.
        return Run((count, count - 1) if "waiting" in state and count else (max(count - 1, 0),))
    if state.get("running") is not None:
        return Run((count,))
    if (ended := state.get("terminated")) is not None:
        # Without an id nothing ever ran (a queued job was cancelled), unless an older run did.
        return Run(
            (count, count - 1) if last else (count,), "" if ended.get("containerID") else f"{which} is terminated"
        )
    if last is not None:
        return Run((count, count - 1))
    return _refuse_waiting(which, state.get("waiting"))


def _refuse_waiting(which: str, waiting: Object | None) -> Run:
    if waiting is None:
        raise errors.Rejected(f"{which} is waiting to start - no logs yet")
    reason = str(waiting.get("reason", ""))
    texts = {"ErrImagePull": "image can't be pulled", "ImagePullBackOff": "trying and failing to pull image"}
    raise errors.Rejected(f"{which} is waiting to start: {texts.get(reason, reason)}")


def container_status(pod: Object, container: str) -> Object | None:
    """The status of the pod's container, of any kind, or None."""
    status = pod.get("status") or {}
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for item in status.get(kind) or []:
            if item["name"] == container:
                found: Object = item
                return found
    return None


class Follower:
    """Knows whether one run of a container may still write, and waits for news of it."""

    def __init__(self, pods: podsource.PodSource, pod: Object, container: str, *, count: int) -> None:
        meta = pod["metadata"]
        self._pods, self._container, self._count = pods, container, count
        self._namespace, self._name, self._uid = meta["namespace"], meta["name"], meta["uid"]

    def is_over(self) -> bool:
        """Whether the run has ended: nothing will be appended to its file any more."""
        pod = self._pods.find(self._namespace, self._name)
        if pod is None or pod["metadata"]["uid"] != self._uid:
            return True
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return True
        status = container_status(pod, self._container)
        if status is None:
            return True
        return "running" not in (status.get("state") or {}) or int(status.get("restartCount") or 0) > self._count

    async def wait(self, seconds: float) -> None:
        """Return when the pod changes, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._pods.wait_for_change(self._uid)
        except TimeoutError:
            pass


async def clock_ahead(directory: jobdir.PodDirectory) -> float:
    """How far, in seconds, the clock of the pod's node is ahead of ours, as its agent knows it; 0 if it does not."""
    try:
        report = await asyncio.to_thread(jobdir.read_json, directory.report)
        return float(report.get("clock_ahead_seconds", 0.0)) if report else 0.0
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0


async def find(paths: list[str], *, offload: Callable[..., Any] = asyncio.to_thread) -> str | None:
    """The first of the paths at which there is a file, or None."""

    def look() -> str | None:
        return next((path for path in paths if Path(path).exists()), None)

    found: str | None = await offload(look)
    return found


async def stream(
    path: str,
    query: logquery.Query,
    *,
    follower: Follower | None = None,
    offload: Callable[..., Any] = asyncio.to_thread,
) -> AsyncGenerator[bytes]:
    """Yield the log's bytes: what is there now, and with a follower all that comes until the run is over.

    A file that is not there is empty, or is waited for: the container may be starting on another host.

    Args:
        path: The CRI log file.
        query: What of it to show.
        follower: Says when to stop waiting for more; None to stop at once.
        offload: Runs a blocking function in a thread: the shared file system may hang.

    Raises:
        OSError: The file system failed, and nobody is following (a follower tries again).
    """
    chosen = cri.Filter(query.options)
    place: _Place | None = None
    pause = FIRST_PAUSE_SECONDS
    while not chosen.is_full:
        is_over = follower is None or follower.is_over()
        has_grown = False
        try:
            place = place or await offload(_start, path, query.tail_entries)
            end = place.end if place is not None and follower is None else None
            while place is not None and (block := await offload(_read, path, place.offset, end)):
                has_grown = True
                place.offset += len(block)
                if text := chosen.feed(block):
                    yield text
                if chosen.is_full:
                    return
        except OSError as error:
            if is_over:
                raise
            LOG.warning("Cannot read a log, will try again", path=path, error=str(error))
        if is_over:
            # With a tail of nothing, an unfinished entry is nothing too.
            if (follower is not None or query.tail_entries != 0) and (text := chosen.finish()):
                yield text
            return
        # If it ended while we read, the last bytes may have come after our last look: read once more.
        if follower is not None and not follower.is_over():
            pause = FIRST_PAUSE_SECONDS if has_grown else min(pause * 1.5, LONGEST_PAUSE_SECONDS)
            await follower.wait(pause)


@dataclass
class _Place:
    offset: int
    end: int
    """How long the file was at the first look: who does not follow reads no further."""


def _start(path: str, tail_entries: int | None) -> _Place | None:
    """Where to begin, or None if there is no file yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        if tail_entries is None:
            return _Place(0, size)

        def read(count: int, offset: int) -> bytes:
            return os.pread(descriptor, count, offset)

        return _Place(cri.tail_start(read, size=size, entries=tail_entries), size)
    finally:
        os.close(descriptor)


def _read(path: str, offset: int, end: int | None) -> bytes:
    """The next block, empty at the end (or at the given end) and while there is no file."""
    count = BLOCK_BYTES if end is None else min(BLOCK_BYTES, end - offset)
    if count <= 0:
        return b""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)
