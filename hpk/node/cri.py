"""CRI log files (:mod:`hpk.crilog`), searched and filtered for a log request. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from hpk import crilog

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:\d\d) (stdout|stderr) ([^ ]*) ", re.DOTALL
)
_TEXTS = {
    # One substitution extracts the text of a whole block: a partial entry's text without its newline, any other entry's
    # with it, and nothing of lines that are not entries of this stream.
    stream: re.compile(
        rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) (?:%s) "
        rb"(?:P(?::[^ \n]*)? ([^\n]*)\n|[^ \n]* ([^\n]*\n))|[^\n]*\n" % name
    )
    for stream, name in ((None, b"stdout|stderr"), ("stdout", b"stdout"), ("stderr", b"stderr"))
}
_SECOND_NS = 1_000_000_000
_LAST_SECOND = 253402300799
"""9999-12-31T23:59:59Z."""
_LOOK_BYTES = 64 << 10
"""Large enough to find the start of an entry that the agent writes."""
LONGEST_ENTRY_BYTES = 1 << 20
"""The agent cuts entries at 16 KiB. Longer ones are passed on in pieces, to bound memory."""


@dataclass(frozen=True, kw_only=True)
class LogOptions:
    """Options of a log request."""

    timestamps: bool = False
    since_ns: int | None = None
    """Unix nanoseconds; older entries are left out."""
    limit_bytes: int | None = None
    """The most bytes to return; the last line may be cut."""
    stream: str | None = None
    """``stdout`` or ``stderr``; None for both."""


class _Entry(NamedTuple):
    is_wanted: bool
    is_partial: bool
    stamp: bytes
    text_at: int


_NO_ENTRY = _Entry(is_wanted=False, is_partial=False, stamp=b"", text_at=0)
"""Stands for a long line that is not an entry, whose rest must not be parsed as a new one."""


class Filter:
    """A filter that takes a CRI file in arbitrary blocks and returns what the options select.

    Attributes:
        is_full: Whether the limit is reached, so that no more output follows.
    """

    def __init__(self, options: LogOptions) -> None:
        self.is_full = False
        self._options = options
        self._since = None if options.since_ns is None else _stamp(options.since_ns)
        self._is_plain = options.since_ns is None and not options.timestamps
        self._texts = _TEXTS[options.stream]
        self._remaining = options.limit_bytes
        self._rest = b""
        self._at_line_start = True
        self._going_on: _Entry | None = None

    def feed(self, block: bytes) -> bytes:
        """Process the next block of the file and return its output."""
        data = self._rest + block
        end = data.rfind(b"\n") + 1
        data, self._rest = data[:end], data[end:]
        found = []
        if self._going_on is not None and data:
            line, _, data = data.partition(b"\n")
            found.append(self._entry(line))
        if self._is_plain:
            found.append(self._texts.sub(rb"\1\2", data))
        elif data:
            found += [self._entry(line) for line in data[:-1].split(b"\n")]
        if len(self._rest) > LONGEST_ENTRY_BYTES:
            found.append(self._piece())
        return self._limited(b"".join(found))

    def finish(self) -> bytes:
        """Return the output of an incomplete last entry, whose writer died before its newline."""
        return self._limited(self._piece())

    def _entry(self, line: bytes) -> bytes:
        """Return the output of a complete entry (without its newline)."""
        entry = self._going_on or self._parsed(line)
        self._going_on = None
        if entry is None or not entry.is_wanted:
            return b""
        text = line[entry.text_at :]
        return self._put(entry.stamp, text if entry.is_partial else text + b"\n")

    def _piece(self) -> bytes:
        """Return the output of the bytes left so far, as the beginning or continuation of an entry."""
        line, self._rest = self._rest, b""
        entry = self._going_on or self._parsed(line) or _NO_ENTRY
        self._going_on = entry._replace(text_at=0)
        if not entry.is_wanted or not line[entry.text_at :]:
            return b""
        return self._put(entry.stamp, line[entry.text_at :])

    def _put(self, stamp: bytes, text: bytes) -> bytes:
        head = stamp + b" " if self._options.timestamps and self._at_line_start else b""
        self._at_line_start = text.endswith(b"\n") if text else self._at_line_start and not head
        return head + text

    def _parsed(self, line: bytes) -> _Entry | None:
        """Return the entry, or None if the line is not one (a torn write of a node that died)."""
        match = _HEADER.match(line)
        if match is None:
            return None
        _, _, zone, stream, tag = match.groups()
        is_wanted = self._options.stream in (None, stream.decode())
        if is_wanted and self._since is not None:
            try:
                is_wanted = _in_utc(match) >= self._since
            except (ValueError, OverflowError):
                return None
        return _Entry(is_wanted, tag == b"P" or tag.startswith(b"P:"), _local(match) + zone, match.end())

    def _limited(self, found: bytes) -> bytes:
        if self._remaining is None:
            return found
        found = found[: self._remaining]
        self._remaining -= len(found)
        self.is_full = self._remaining <= 0
        return found


def _stamp(nanoseconds: int) -> bytes:
    """Format the instant as log files do, in UTC without the Z. Such stamps sort by time."""
    second = nanoseconds // _SECOND_NS
    if second < 0:
        return b""
    if second > _LAST_SECOND:
        return b"~"
    return crilog.timestamp(nanoseconds).removesuffix(b"Z")


def _local(match: re.Match[bytes]) -> bytes:
    """Return an entry's time with nine digits, without the zone."""
    return match[1] + b"." + (match[2] or b"").ljust(9, b"0")


def _in_utc(match: re.Match[bytes]) -> bytes:
    """Return an entry's time in UTC, to be compared with :func:`_stamp`.

    Raises:
        ValueError, OverflowError: There is no such time.
    """
    stamp = _local(match)
    if match[3] == b"Z":
        return stamp
    at = datetime.fromisoformat((match[1] + match[3]).decode()).astimezone(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S").encode() + stamp[len(match[1]) :]


def tail_start(
    read: Callable[[int, int], bytes], *, size: int, entries: int, block_bytes: int = 1 << 16
) -> tuple[int, int]:
    """Return the offset of the last entries of a file, searched backwards, and how many entries it lacks.

    An unfinished last entry (no newline yet) does not count. `read` returns up to ``(count, offset)`` bytes of the
    file.
    """
    missing = entries + 1  # one more: the newline before the first entry wanted
    end = size
    while end > 0:
        begin = max(0, end - block_bytes)
        block = read(end - begin, begin)
        found = block.count(b"\n")
        if found >= missing:
            at = len(block)
            for _ in range(missing):
                at = block.rfind(b"\n", 0, at)
            return begin + at + 1, 0
        missing -= found
        end = begin
    return 0, max(0, missing - 1)


def since_start(
    read: Callable[[int, int], bytes], *, size: int, since_ns: int, step_bytes: int = 1 << 16
) -> tuple[int, bool]:
    """Return an offset before all entries since then, and whether all earlier entries are older.

    The search runs backwards in strides that double, so at most twice the wanted bytes remain to be read. Entries
    before a backward jump of the writer's clock count as older. `read` returns up to ``(count, offset)`` bytes of the
    file; the first stride is `step_bytes` long.
    """
    since = _stamp(since_ns)
    while True:
        begin = max(0, size - step_bytes)
        block = read(_LOOK_BYTES, begin)
        at = block.find(b"\n") + 1 if begin else 0
        if (at or not begin) and _is_older(block[at:], since):
            return begin + at, True
        if not begin:
            return 0, False
        step_bytes *= 2


def _is_older(entry: bytes, since: bytes) -> bool:
    """Return whether the bytes begin an entry that is older than `since`."""
    match = _HEADER.match(entry)
    try:
        return match is not None and _in_utc(match) < since
    except (ValueError, OverflowError):
        return False
