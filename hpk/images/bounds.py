"""What an image may take of the machine that converts it, whoever made it.

The converter is a process of its own: what it reads is bounded here, and what it takes by the kernel (setrlimit(2)).
Nothing that an image holds can end the kubelet, and what was exceeded is in the error.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpk.images import layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LONGEST_HEADER_BYTES = 1 << 20
"""One extended header of a tar file; the limit of Go's archive/tar, and so of containerd (maxSpecialFileSize)."""
MOST_ID = (1 << 32) - 2
"""The largest uid or gid that Linux has."""
KILLED_FIRST_SCORE = 500
"""Added to oom_score_adj: where memory runs short the converter goes, not the API server beside it."""


class Bounds(NamedTuple):
    """What an image may have, all of its layers together."""

    layers: int = 1000
    """containerd's overlayfs mounts some hundreds, Docker builds 127."""
    members: int = 1_000_000
    """Files, directories, links and whiteouts; conda with CUDA has 0.4 million."""
    header_bytes: int = 256 << 20
    """Names, targets of links and extended attributes."""
    content_bytes: int = 256 << 30
    """Unpacked."""
    memory_bytes: int = 1 << 30
    """Of the converter's memory; a member takes 1 KiB of it."""
    cpu_seconds: int = 3600
    """Of one process; 100 GiB take a quarter of that."""


DEFAULT = Bounds()


class TooMuch(layers.BadLayer):
    """An image exceeds a bound; the text says which, and how much is allowed."""


class Count:
    """Counts what the layers of an image hold."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._members = self._header_bytes = self._content_bytes = 0

    def layer(self) -> None:
        """Begin a layer."""
        self._plain_bytes = 0

    def member(self, entry: layers.Entry, *, plain_bytes: int) -> None:
        """Add a member.

        A sparse file counts with its full size. `plain_bytes` is how far the layer's unpacked stream has been read,
        headers included.

        Raises:
            TooMuch: That is more than an image may have.
        """
        bounds = self._bounds
        self._members += 1
        self._header_bytes += len(entry.name) + len(entry.link)
        self._header_bytes += sum(len(name) + len(value) for name, value in entry.xattrs)
        self._content_bytes += max(entry.size, plain_bytes - self._plain_bytes)
        self._plain_bytes = plain_bytes
        if self._members > bounds.members:
            raise TooMuch(f"the image has more than {bounds.members} files")
        if self._header_bytes > bounds.header_bytes:
            raise TooMuch(f"the image's names and attributes take more than {_mebibytes(bounds.header_bytes)}")
        if self._content_bytes > bounds.content_bytes:
            raise TooMuch(f"the image's unpacked files take more than {_mebibytes(bounds.content_bytes)}")
        if not (0 <= entry.uid <= MOST_ID and 0 <= entry.gid <= MOST_ID):
            raise layers.BadLayer(f"no user or group can own {entry.name[:64]!r}: {entry.uid}:{entry.gid}")


def check_layers(sizes: Sequence[int], bounds: Bounds = DEFAULT) -> None:
    """Look at what the registry announces, before any of it is fetched.

    Raises:
        TooMuch: That is more than an image may have.
    """
    if len(sizes) > bounds.layers:
        raise TooMuch(f"the image has {len(sizes)} layers (at most {bounds.layers})")
    if sum(sizes) > bounds.content_bytes:
        raise TooMuch(f"the image's layers take {_mebibytes(sum(sizes))} (at most {_mebibytes(bounds.content_bytes)})")


def too_much_memory(bounds: Bounds) -> str:
    """Return what is said when there was not enough memory."""
    return f"the image cannot be converted with {_mebibytes(bounds.memory_bytes)} of memory"


def too_much_time(bounds: Bounds) -> str:
    """Return what is said when the kernel has ended the converter for the time it took."""
    return f"the image cannot be converted within {bounds.cpu_seconds} s of CPU time"


def confine(bounds: Bounds) -> None:
    """Have the kernel bound this process and its children; limits that are lower already stay.

    Source: setrlimit(2).  A process beyond its CPU time gets SIGXCPU, a file beyond its size is EFBIG.
    """
    for kind, most in (
        (resource.RLIMIT_AS, bounds.memory_bytes),
        (resource.RLIMIT_CPU, bounds.cpu_seconds),
        (resource.RLIMIT_FSIZE, bounds.content_bytes + (1 << 30)),
        (resource.RLIMIT_CORE, 0),
    ):
        soft, hard = resource.getrlimit(kind)
        lowest = min(limit for limit in (most, soft, hard) if limit != resource.RLIM_INFINITY)
        resource.setrlimit(kind, (lowest, hard))
    with contextlib.suppress(OSError, ValueError):  # a favour to others, no more
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + KILLED_FIRST_SCORE)))


@contextlib.contextmanager
def no_bound_on_memory() -> Iterator[None]:
    """Lift the bound on memory for a child that is started meanwhile: what that takes follows from what it is sent."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mebibytes(count: int) -> str:
    return f"{count >> 20} MiB"
