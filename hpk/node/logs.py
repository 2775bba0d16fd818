"""Container logs, read from the pod's directory on the shared file system.

The pod's status tells which runs of a container exist and whether one is still going on. The bytes are in
``logs/<container>/<restart count>.log`` and its further parts (:func:`hpk.jobdir.log_parts`), written by the agent on
another host. A kubelet shows only the newest file; here all kept parts form one log.

Shared file systems do not report growth (no inotify between hosts), so growth is polled. The end is not: the pod's
change wakes the reader, which then reads to the end of the file.

Every read opens the file again. That makes NFS show bytes that another host wrote and closed (close-to-open
consistency), and a waiting reader or slow client holds no descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from hpk import aiotasks, crilog, errors, jobdir
from hpk.aio import backoff
from hpk.node import cri

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from hpk.node import logquery, podsource

LOG = structlog.get_logger(__name__)

BLOCK_BYTES = 128 << 10
"""Bytes for each read and write; a slow client costs about three times as much."""
PAUSES = backoff.BackoffPolicy(first_seconds=0.2, factor=1.5, cap_seconds=1.0)
"""Pauses between looks at a log that does not grow."""

Object = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """The run of a container to show.

    Attributes:
        counts: Restart counts to look for, best first.
        refusal: The error if none of them has a file; empty if the file may still appear.
    """

    counts: tuple[int, ...]
    refusal: str = ""


def container_spec(pod: Object, container: str) -> Object | None:
    """Return the pod's container of this name, of any kind, or None."""
    return _named(pod.get("spec"), ("containers", "initContainers", "ephemeralContainers"), container)


def container_status(pod: Object, container: str) -> Object | None:
    """Return the status of the pod's container, of any kind, or None."""
    kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
    return _named(pod.get("status"), kinds, container)


def _named(part: Object | None, kinds: tuple[str, ...], name: str) -> Object | None:
    return next((item for kind in kinds for item in (part or {}).get(kind) or [] if item["name"] == name), None)


def choose(pod: Object, container: str, *, previous: bool) -> Run:
    """Return the run that a request means: the current one, or the last that ended.

    Source: validateContainerLogStatus of Kubernetes 1.37, texts included.

    Raises:
        errors.Rejected: There is no such run; the text is for the user.
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
        # While a container waits for its restart, the restart count is still the last run's.
        return Run((count, count - 1) if "waiting" in state and count else (max(count - 1, 0),))
    if state.get("running") is not None:
        return Run((count,))
    if (ended := state.get("terminated")) is not None:
        # Without a container ID nothing ever ran (a queued job was cancelled), except possibly an older run.
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


class Follower:
    """A watch on whether one run of a container may still write."""

    def __init__(self, pods: podsource.PodSource, pod: Object, container: str, *, count: int) -> None:
        meta = pod["metadata"]
        self._pods, self._container, self._count = pods, container, count
        self._namespace, self._name, self._uid = meta["namespace"], meta["name"], meta["uid"]

    def is_over(self) -> bool:
        """Return whether the run has ended, so that its file no longer grows."""
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
        """Wait until the pod changes, or for so many seconds."""
        await aiotasks.in_time(self._pods.wait_for_change(self._uid), seconds)


async def clock_ahead(directory: jobdir.PodDirectory) -> float:
    """Return by how many seconds the pod's node is ahead of our clock, as its agent reports; 0 if unknown."""
    try:
        report = await asyncio.to_thread(jobdir.read_json, directory.report)
        return float(report.get("clock_ahead_seconds", 0.0)) if report else 0.0
    except (OSError, ValueError, TypeError, AttributeError):
        return 0.0


async def find(paths: list[str], *, offload: Callable[..., Any] = asyncio.to_thread) -> str | None:
    """Return the first log that has a file, or None."""

    def look() -> str | None:
        return next((path for path in paths if jobdir.log_parts(path)), None)

    found: str | None = await offload(look)
    return found


async def stream(
    path: str,
    query: logquery.Query,
    *,
    follower: Follower | None = None,
    offload: Callable[..., Any] = asyncio.to_thread,
) -> AsyncGenerator[bytes]:
    """Yield the log's bytes: those there now, and with a follower all until the run is over.

    A missing log is empty, or is waited for: the container may be starting on another host.

    Args:
        path: The CRI log, all remaining parts included.
        query: The options of the request.
        follower: Tells when to stop waiting for more; None to stop at once.
        offload: Runs a blocking function in a thread: the shared file system may hang, and a search by time takes CPU.

    Raises:
        OSError: The file system failed and there is no follower (with one, the read is retried).
    """
    reader = _Reader(path, query, is_following=follower is not None)
    pauses = backoff.Backoff(PAUSES)
    while not reader.is_full:
        is_over = follower is None or follower.is_over()
        try:
            while (text := await offload(reader.read)) is not None:
                pauses.succeeded()
                if text:
                    yield text
                if reader.is_full:
                    return
        except OSError as error:
            if is_over:
                raise
            LOG.warning("Cannot read a log, will try again", path=path, error=str(error))
        if is_over:
            # With a tail of 0, an unfinished entry is omitted too.
            if (follower is not None or query.tail_entries != 0) and (text := reader.finish()):
                yield text
            return
        # If the run ended during the read, the last bytes may have come after it: read once more.
        if follower is not None and not follower.is_over():
            await follower.wait(pauses.failed())


class _Reader:
    """A reader through the parts of a log; blocking, for a thread."""

    def __init__(self, path: str, query: logquery.Query, *, is_following: bool) -> None:
        self._path, self._query = path, query
        self._is_following = is_following
        self._filter = cri.Filter(query.options)
        self._part, self._offset = -1, 0
        self._end = (-1, 0)
        """Part and offset of the end at the first look. Without following, nothing beyond it is read."""

    @property
    def is_full(self) -> bool:
        """Whether the requested amount has been read."""
        return self._filter.is_full

    def read(self) -> bytes | None:
        """Return the output of the next block, perhaps empty; None if there is no more now.

        Raises:
            OSError: The file system failed.
        """
        if self._part < 0 and not self._start():
            return None
        if block := self._block():
            self._offset += len(block)
            return self._filter.feed(block)
        parts = jobdir.log_parts(self._path)
        newer = [part for part in parts if part > self._part]
        if not newer or not self._may_go_on(newer[0]):
            return None
        if block := self._block():  # written before the next part began, but after our read
            self._offset += len(block)
            return self._filter.feed(block)
        is_whole = self._part in parts and newer[0] == self._part + 1
        self._part, self._offset = newer[0], 0
        return b"" if is_whole else self._filter.feed(_gap())

    def finish(self) -> bytes:
        """Return the output of an incomplete last entry."""
        return self._filter.finish()

    def _may_go_on(self, part: int) -> bool:
        return self._is_following or part <= self._end[0]

    def _start(self) -> bool:
        """Find the start position. Return whether there is anything yet."""
        sizes: dict[int, int] = {}
        for part in jobdir.log_parts(self._path):
            with contextlib.suppress(FileNotFoundError):  # just removed
                sizes[part] = Path(jobdir.log_part(self._path, part)).stat().st_size
        if not (parts := list(sizes)):
            return False
        self._end = (parts[-1], sizes[parts[-1]])
        starts = [(parts[0], 0)]
        if self._query.tail_entries is not None:
            starts.append(self._tail(parts, sizes, self._query.tail_entries))
        if self._query.options.since_ns is not None:
            starts.append(self._since(parts, sizes, self._query.options.since_ns))
        self._part, self._offset = max(starts)
        return True

    def _tail(self, parts: list[int], sizes: dict[int, int], entries: int) -> tuple[int, int]:
        for part in reversed(parts):
            start, entries = cri.tail_start(self._reading(part), size=sizes[part], entries=entries)
            if not entries:
                return part, start
        return parts[0], 0

    def _since(self, parts: list[int], sizes: dict[int, int], since_ns: int) -> tuple[int, int]:
        for part in reversed(parts):
            start, is_all = cri.since_start(self._reading(part), size=sizes[part], since_ns=since_ns)
            if is_all:
                return part, start
        return parts[0], 0

    def _reading(self, part: int) -> Callable[[int, int], bytes]:
        return lambda count, offset: _read(jobdir.log_part(self._path, part), offset, count)

    def _block(self) -> bytes:
        """Return the next block of this part; empty at its end, at the given end, or after its removal."""
        count = BLOCK_BYTES
        if not self._is_following and self._part == self._end[0]:
            count = min(count, self._end[1] - self._offset)
        return _read(jobdir.log_part(self._path, self._part), self._offset, count) if count > 0 else b""


def _read(path: str, offset: int, count: int) -> bytes:
    """Return up to `count` bytes of a file; empty if it does not exist."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(descriptor, count, offset)
    finally:
        os.close(descriptor)


def _gap() -> bytes:
    """Return an entry that marks a part removed before it was read; it also ends an entry cut off there."""
    text = b"[hpk: the log was rotated before all of it was read here]\n"
    return b"\n" + crilog.head(crilog.timestamp(time.time_ns()), "stderr") + text
