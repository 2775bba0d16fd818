"""The CRI log format, which the agent writes and the kubelet's API reads.

An entry is ``2016-10-06T00:17:09.669794202Z stdout F text``: time, stream, tag, and the container's bytes, unchanged.
The tag ``P`` (partial) means that the text continues in the next entry without a newline.
Source: k8s.io/cri-client/pkg/logs of Kubernetes 1.37.
"""

from __future__ import annotations

import time

FULL, PARTIAL = "F", "P"


def timestamp(at_ns: int) -> bytes:
    """Return Unix nanoseconds as an entry's time: RFC 3339 in UTC with nine digits."""
    seconds, nanoseconds = divmod(at_ns, 1_000_000_000)
    year, month, day, hour, minute, second, *_ = time.gmtime(seconds)
    return b"%04d-%02d-%02dT%02d:%02d:%02d.%09dZ" % (year, month, day, hour, minute, second, nanoseconds)


def head(stamp: bytes, stream: str, tag: str = FULL) -> bytes:
    """Return what comes before an entry's text; ``stamp`` is its :func:`timestamp`."""
    return stamp + f" {stream} {tag} ".encode()
