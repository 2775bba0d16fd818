"""CRI log files: filtered, cut, joined, and read from their end, as a naive reading of the whole file would."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import hypothesis
from hypothesis import strategies as st

from hpk.node import cri

START = 1_700_000_000


@dataclass(frozen=True)
class Entry:
    """One entry of a log, before it is written down."""

    second: int
    nano: int
    stream: str
    tag: str
    text: bytes

    @property
    def stamp(self) -> bytes:
        """The time as the agent writes it."""
        at = datetime.fromtimestamp(START + self.second, tz=UTC)
        return f"{at:%Y-%m-%dT%H:%M:%S}.{self.nano:09d}Z".encode()

    @property
    def line(self) -> bytes:
        """The entry in the file."""
        return b" ".join((self.stamp, self.stream.encode(), self.tag.encode(), self.text)) + b"\n"


entries = st.lists(
    st.builds(
        Entry,
        second=st.integers(0, 9),
        nano=st.integers(0, 999_999_999),
        stream=st.sampled_from(["stdout", "stderr"]),
        tag=st.sampled_from(["F", "F", "P", "P:x"]),
        text=st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")),
    ),
    max_size=20,
)
options = st.builds(
    cri.LogOptions,
    timestamps=st.booleans(),
    since_ns=st.none() | st.integers(START * 10**9, (START + 10) * 10**9),
    limit_bytes=st.none() | st.integers(1, 200),
    stream=st.sampled_from([None, "stdout", "stderr"]),
)


def naive(log: list[Entry], wanted: cri.LogOptions) -> bytes:
    """What must come out, entry by entry."""
    out = b""
    is_line_start = True
    for entry in log:
        if wanted.stream not in (None, entry.stream):
            continue
        if wanted.since_ns is not None and (START + entry.second) * 10**9 + entry.nano < wanted.since_ns:
            continue
        piece = entry.stamp + b" " if wanted.timestamps and is_line_start else b""
        piece += entry.text if entry.tag.startswith("P") else entry.text + b"\n"
        out += piece
        is_line_start = piece.endswith(b"\n") if piece else is_line_start
        if piece == entry.stamp + b" ":
            is_line_start = False
    return out if wanted.limit_bytes is None else out[: wanted.limit_bytes]


@hypothesis.given(log=entries, wanted=options, cuts=st.lists(st.integers(1, 40), min_size=1))
def test_filter_is_the_naive_reading(log: list[Entry], wanted: cri.LogOptions, cuts: list[int]) -> None:
    """Wherever the file is cut into blocks, what comes out is what the entries say."""
    data = b"".join(entry.line for entry in log)
    chosen = cri.Filter(wanted)
    out = b""
    while data and not chosen.is_full:
        count = cuts[len(data) % len(cuts)]
        out += chosen.feed(data[:count])
        data = data[count:]
    out += chosen.finish()
    assert out == naive(log, wanted)


@hypothesis.given(log=entries, unfinished=st.binary(max_size=9), count=st.integers(0, 25), block=st.integers(1, 70))
def test_tail_is_the_naive_tail(log: list[Entry], unfinished: bytes, count: int, block: int) -> None:
    """Reading backwards finds the last entries; an unfinished one is kept and not counted."""
    unfinished = unfinished.replace(b"\n", b"")
    data = b"".join(entry.line for entry in log) + unfinished
    start, missing = cri.tail_start(
        lambda size, at: data[at : at + size], size=len(data), entries=count, block_bytes=block
    )
    assert missing == max(0, count - len(log))
    kept = log[-count:] if count else []
    assert data[start:] == b"".join(entry.line for entry in kept) + unfinished


def test_tail_of_a_huge_file_reads_only_its_end() -> None:
    """A gigabyte of log costs a few blocks."""
    line = Entry(0, 0, "stdout", "F", b"x" * 60).line
    size = (1 << 30) // len(line) * len(line)
    asked = []

    def read(count: int, offset: int) -> bytes:
        asked.append(count)
        first = offset % len(line)
        return (line * (count // len(line) + 2))[first : first + count]

    start, missing = cri.tail_start(read, size=size, entries=10)
    assert (size - start, missing) == (10 * len(line), 0)
    assert sum(asked) <= 1 << 16


@hypothesis.given(st.integers(0, 300), st.integers(-2, 310), st.integers(8, 300))
def test_since_begins_before_what_is_wanted(count: int, second: int, step: int) -> None:
    """Nothing that is wanted is passed over, and all that is passed over is older."""
    lines = [Entry(number, 0, "stdout", "F", b"x" * (number % 50)).line for number in range(count)]
    data = b"".join(lines)
    start, is_all = cri.since_start(
        lambda size, at: data[at : at + size], size=len(data), since_ns=(START + second) * 10**9, step_bytes=step
    )
    first = min(max(second, 0), count)
    assert start <= sum(len(line) for line in lines[:first])
    assert start == 0 or data[:start].endswith(b"\n")
    assert is_all == (count > 0 and second > 0)


def test_since_in_a_huge_file_reads_only_its_end() -> None:
    """A few looks, however far it reaches back; the rest is not read."""
    line = Entry(0, 0, "stdout", "F", b"x" * 60).line
    count = (1 << 30) // len(line)
    asked = []

    def read(size: int, offset: int) -> bytes:
        asked.append(size)
        first = offset // len(line)
        text = b"".join(Entry(number, 0, "stdout", "F", b"x" * 60).line for number in range(first, first + 3))
        return text[offset % len(line) :][:size]

    wanted = 10_000
    start, _ = cri.since_start(read, size=count * len(line), since_ns=(START + count - wanted) * 10**9)
    assert wanted * len(line) <= count * len(line) - start <= 2 * wanted * len(line) + (1 << 16)
    assert len(asked) < 10


def test_partial_entries_are_joined_under_one_stamp() -> None:
    """A line longer than the agent's buffer comes out as one line with one time."""
    log = [Entry(0, 1, "stdout", "P", b"one "), Entry(0, 2, "stdout", "F", b"line"), Entry(0, 3, "stdout", "F", b"two")]
    chosen = cri.Filter(cri.LogOptions(timestamps=True))
    out = chosen.feed(b"".join(entry.line for entry in log))
    assert out == b"2023-11-14T22:13:20.000000001Z one line\n2023-11-14T22:13:20.000000003Z two\n"


def test_stamps_are_widened_and_zones_kept() -> None:
    """Other writers' stamps, short or with an offset, are put out in fixed width and compared as instants."""
    wanted = cri.LogOptions(timestamps=True, since_ns=START * 10**9)
    chosen = cri.Filter(wanted)
    out = chosen.feed(
        b"2023-11-14T22:13:20.5Z stdout F a\n"
        b"2023-11-15T00:13:20+02:00 stdout F b\n"
        b"2023-11-15T00:13:19+02:00 stdout F c\n"
    )
    assert out == b"2023-11-14T22:13:20.500000000Z a\n2023-11-15T00:13:20.000000000+02:00 b\n"


def test_what_is_no_entry_is_left_out() -> None:
    """A torn write of a node that died spoils no other line."""
    good = Entry(0, 0, "stdout", "F", b"\xff\xfe \x00 good").line
    garbage = [b"\n", b"garbage\n", b"2023-11-14T22:13:20Z stdwhat F x\n", b"2023-11-14T22:13:20Z stdout\n"]
    assert cri.Filter(cri.LogOptions()).feed(b"".join(garbage) + good) == b"\xff\xfe \x00 good\n"


def test_an_entry_without_end_costs_bounded_memory() -> None:
    """A file that is one endless line passes through in pieces and loses nothing."""
    chosen = cri.Filter(cri.LogOptions(timestamps=True))
    head = b"2023-11-14T22:13:20.000000000Z stdout F "
    out = chosen.feed(head)
    for _ in range(40):
        out += chosen.feed(b"x" * (1 << 16))
        assert len(chosen._rest) <= cri.LONGEST_ENTRY_BYTES
    out += chosen.feed(b"\n" + Entry(1, 0, "stdout", "F", b"next").line)
    assert out == head[:31] + b"x" * (40 << 16) + b"\n2023-11-14T22:13:21.000000000Z next\n"
