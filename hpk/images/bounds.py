"""Bounds on what an image may use of the machine that converts it.

The converter is a separate process: what it reads is bounded here, and what it uses by the kernel (setrlimit(2)).
No image can end the kubelet, and the error says which bound was exceeded.
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
MOST_ID = (1 << 32) - 2  # of Linux
KILLED_FIRST_SCORE = 500
"""Added to oom_score_adj: if memory runs short, the kernel kills the converter, not the API server beside it."""


class Bounds(NamedTuple):
    """The bounds on all layers of an image together."""

    layers: int = 1000
    """containerd's overlayfs mounts some hundreds, Docker builds 127."""
    members: int = 1_000_000
    """Files, directories, links and whiteouts; conda with CUDA has 0.4 million."""
    header_bytes: int = 256 << 20
    """Names, targets of links and extended attributes."""
    content_bytes: int = 256 << 30
    """Size of the unpacked files."""
    memory_bytes: int = 1 << 30
    """Memory of the converter; a member takes 1 KiB of it."""
    cpu_seconds: int = 3600
    """CPU time of one process; 100 GiB take a quarter of that."""


DEFAULT = Bounds()


class TooMuch(layers.BadLayer):
    """An image exceeds a bound; the text says which bound and its value."""


class Count:
    """Counts the content of an image's layers."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._members = self._header_bytes = self._content_bytes = 0

    def layer(self) -> None:
        """Begin a layer."""
        self._plain_bytes = 0

    def member(self, entry: layers.Entry, *, plain_bytes: int) -> None:
        """Add a member, a sparse file with its full size.

        `plain_bytes` is the position in the layer's unpacked stream, headers included.

        Raises:
            TooMuch: The image exceeds a bound.
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
    """Check the sizes that the registry announces, before anything is fetched.

    Raises:
        TooMuch: The image exceeds a bound.
    """
    if len(sizes) > bounds.layers:
        raise TooMuch(f"the image has {len(sizes)} layers (at most {bounds.layers})")
    if sum(sizes) > bounds.content_bytes:
        raise TooMuch(f"the image's layers take {_mebibytes(sum(sizes))} (at most {_mebibytes(bounds.content_bytes)})")


def confine(bounds: Bounds) -> None:
    """Limit this process and its children; keep limits that are lower already.

    Source: setrlimit(2). A process that exceeds its CPU time gets SIGXCPU, a file that is too large EFBIG.
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
    with contextlib.suppress(OSError, ValueError):  # it only protects others
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(min(1000, int(score.read_text()) + KILLED_FIRST_SCORE)))


@contextlib.contextmanager
def no_bound_on_memory() -> Iterator[None]:
    """Lift the bound on memory for a child that is started meanwhile, whose use follows from its input."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _mebibytes(count: int) -> str:
    return f"{count >> 20} MiB"
