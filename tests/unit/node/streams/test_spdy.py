"""SPDY's frames, against recordings of kubectl and against what nobody should send."""

from __future__ import annotations

import hashlib
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpk.node.streams import spdy

RECORDINGS = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "recordings").glob("*.spdy")}
"""What kubectl 1.37 sent: `echo hello there | kubectl exec -i p -- cat`, exec -it, and three forwarded connections."""


def control(kind: int, payload: bytes, *, version: int = 3, flags: int = 0) -> bytes:
    """A control frame."""
    return struct.pack(">HHI", 0x8000 | version, kind, flags << 24 | len(payload)) + payload


def packed(plain: bytes) -> bytes:
    """A header block, of a connection's beginning."""
    deflater = zlib.compressobj(zdict=spdy.DICTIONARY)
    return deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)


def joined(frames: list[spdy.Frame]) -> list[object]:
    """Frames, with the parts of data put together."""
    found: list[object] = []
    open_data: dict[int, bytes] = {}
    for frame in frames:
        if isinstance(frame, spdy.DataFrame):
            open_data[frame.stream] = open_data.get(frame.stream, b"") + frame.data
            if frame.is_last:
                found.append((frame.stream, open_data.pop(frame.stream)))
        else:
            found.append(frame)
    return [*found, sorted(open_data.items())]


def test_the_dictionary_is_the_drafts() -> None:
    """One wrong byte, and no header of any client could be read."""
    assert len(spdy.DICTIONARY) == 1423
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2
    want = "51d27341373f923f3cd88e1eb7162aeaa3723d7585ff2399201dc06498407f02"
    assert hashlib.sha256(spdy.DICTIONARY).hexdigest() == want


def test_an_exec_of_kubectl_is_read() -> None:
    """Streams with their types, the input, and its end."""
    frames = spdy.FrameDecoder().feed(RECORDINGS["exec"])
    opened = [frame for frame in frames if isinstance(frame, spdy.Opened)]
    assert [(one.stream, one.headers["streamtype"]) for one in opened] == [
        (1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr"),
    ]  # fmt: skip
    assert spdy.DataFrame(3, b"hello there\n") in frames
    assert spdy.DataFrame(3, b"", is_last=True) in frames


def test_forwarded_connections_of_kubectl_are_read() -> None:
    """Pairs of streams with port and request, and the data of each."""
    frames = spdy.FrameDecoder().feed(RECORDINGS["forward"])
    opened = [frame.headers for frame in frames if isinstance(frame, spdy.Opened)]
    assert opened == [
        {"port": "18822", "requestid": str(request), "streamtype": kind}
        for request in range(3)
        for kind in ("error", "data")
    ]
    assert [frame.data for frame in frames if isinstance(frame, spdy.DataFrame) and frame.data] == [
        b"hi 1\n", b"hi 2\n", b"hi 3\n",
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(RECORDINGS)), st.lists(st.integers(1, 40), min_size=1))
def test_how_bytes_are_cut_changes_nothing(name: str, sizes: list[int]) -> None:
    """TCP and TLS cut anywhere."""
    whole, decoder, at, frames = RECORDINGS[name], spdy.FrameDecoder(), 0, list[spdy.Frame]()
    turn = 0
    while at < len(whole):
        size = sizes[turn % len(sizes)]
        frames += decoder.feed(whole[at : at + size])
        at, turn = at + size, turn + 1
    assert joined(frames) == joined(spdy.FrameDecoder().feed(whole))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(RECORDINGS)),
    st.lists(st.tuples(st.integers(0, 800), st.binary(max_size=12), st.integers(0, 20)), min_size=1, max_size=8),
)
def test_a_changed_recording_is_read_or_refused(name: str, changes: list[tuple[int, bytes, int]]) -> None:
    """Bytes put in, taken out, or changed: frames or ProtocolError, and nothing else."""
    data = bytearray(RECORDINGS[name])
    for at, new, cut in changes:
        data[at : at + cut] = new
    decoder = spdy.FrameDecoder()
    try:
        frames = decoder.feed(bytes(data))
    except spdy.SpdyError:
        return
    assert sum(len(frame.data) for frame in frames if isinstance(frame, spdy.DataFrame)) <= len(data)
    assert len(decoder._partial) <= spdy.MOST_CONTROL_BYTES


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """The same for noise."""
    try:
        spdy.FrameDecoder().feed(data)
    except spdy.SpdyError:
        return


@pytest.mark.parametrize(
    "data",
    [
        control(1, bytes(10), version=2),
        control(1, b""),
        control(3, b"1"),
        control(6, b"12345"),
        control(7, b""),
        struct.pack(">HHI", 0x8003, 1, spdy.MOST_CONTROL_BYTES + 1),
        control(1, bytes(10) + b"no zlib"),
        control(1, bytes(10) + packed(b"\0\0")),
        control(1, bytes(10) + packed(struct.pack(">II", 1, 1 << 31) + b"a")),
        control(1, bytes(10) + packed(struct.pack(">I", spdy.MOST_HEADERS + 1))),
        control(1, bytes(10) + packed(bytes(spdy.MOST_HEADER_BYTES + 1))),
        control(1, bytes(10) + packed(bytes(4))[:-4] + zlib.compress(b"x")),
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    """Other versions, wrong lengths, headers that inflate to too much or to nothing that makes sense."""
    with pytest.raises(spdy.SpdyError):
        spdy.FrameDecoder().feed(data)


def test_what_does_not_matter_is_passed_over() -> None:
    """SETTINGS, WINDOW_UPDATE, unknown types, and data without bytes; HEADERS are inflated, or the next would fail."""
    deflater = zlib.compressobj(zdict=spdy.DICTIONARY)

    def block(name: bytes) -> bytes:
        plain = struct.pack(">II", 1, len(name)) + name + struct.pack(">I", 3) + b"a\0b"
        return deflater.compress(plain) + deflater.flush(zlib.Z_SYNC_FLUSH)

    frames = spdy.FrameDecoder().feed(
        control(4, bytes(12))
        + control(9, bytes(8))
        + control(77, b"")
        + struct.pack(">II", 5, 0)
        + control(8, struct.pack(">I", 1) + block(b"first"))
        + control(1, struct.pack(">IIH", 3, 0, 0) + block(b"second"), flags=1)
    )
    assert frames == [spdy.Opened(3, {"second": "a"}, is_last=True)]


def test_large_data_is_handed_on_as_it_comes() -> None:
    """A frame of 16 MB is never in memory."""
    decoder = spdy.FrameDecoder()
    assert decoder.feed(struct.pack(">II", 3, 1 << 24 | spdy.MOST_DATA_BYTES) + b"abc") == [spdy.DataFrame(3, b"abc")]
    left = spdy.MOST_DATA_BYTES - 3
    assert decoder.feed(bytes(left)) == [spdy.DataFrame(3, bytes(left), is_last=True)]
    assert len(decoder._partial) == 0


def test_replies_are_read_by_zlib() -> None:
    """One context for the whole connection, and a window that holds the dictionary."""
    encoder, inflater = spdy.FrameEncoder(), zlib.decompressobj(zdict=spdy.DICTIONARY)
    for stream in (1, 3, 5):
        frame = encoder.reply(stream)
        assert struct.unpack_from(">HHII", frame) == (0x8003, 2, len(frame) - 8, stream)
        assert inflater.decompress(frame[12:]) == bytes(4)
