"""WebSocket's frames, against recordings of kubectl and against what nobody should send."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpk.node.streams import spdy, websocket
from tests.fakes.streams import masked

RECORDINGS = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "recordings").glob("*.websocket")}
"""What kubectl 1.37 sent: `echo hello there | kubectl exec -i p -- cat`, and three forwarded connections."""


def messages(events: list[websocket.Event]) -> list[object]:
    """Events, with the parts of messages put together."""
    found: list[object] = []
    under_way = b""
    for event in events:
        if isinstance(event, websocket.Part):
            under_way = event.data if event.is_first else under_way + event.data
            if event.is_last:
                found.append(under_way)
        else:
            found.append(event)
    return found


def test_the_handshake_is_the_rfcs() -> None:
    """The RFC's own example."""
    headers = {"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert websocket.accept(headers) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    "headers",
    [{}, {"Sec-WebSocket-Version": "13"}, {"Sec-WebSocket-Version": "8", "Sec-WebSocket-Key": "x" * 22 + "=="}],
)
def test_what_is_no_handshake_is_refused(headers: dict[str, str]) -> None:
    """Another version, or no key."""
    with pytest.raises(websocket.WebSocketError):
        websocket.accept(headers)


def test_an_exec_of_kubectl_is_read() -> None:
    """Input on channel 0, and its end on 255."""
    assert messages(websocket.MessageDecoder().feed(RECORDINGS["exec"]))[:2] == [b"\0hello there\n", b"\xff\0"]


def test_a_tunnel_of_kubectl_carries_spdy() -> None:
    """The messages, one after the other, are a SPDY connection's bytes."""
    found = messages(websocket.MessageDecoder().feed(RECORDINGS["forward"]))
    frames = spdy.FrameDecoder().feed(b"".join(one for one in found if isinstance(one, bytes)))
    assert spdy.DataFrame(3, b"hi 1\n") in frames


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=70_000), st.integers(1, 4), st.sampled_from([None, b"", b"ping"])), max_size=4
    ),
    st.integers(1, 200_000),
)
def test_messages_come_as_they_were_sent(sent: list[tuple[bytes, int, bytes | None]], size: int) -> None:
    """In frames or in one, with pings between them, of every length, and cut anyhow."""
    stream, want = b"", list[object]()
    for data, count, ping in sent:
        step = len(data) // count + 1
        pieces = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
        for index, piece in enumerate(pieces):
            stream += masked(piece, 2 if index == 0 else 0, is_final=index == len(pieces) - 1)
            if ping is not None:
                stream += masked(ping, 9)
        want += [websocket.PingMessage(ping)] * (len(pieces) - 1) if ping is not None else []
        want += [data] + ([websocket.PingMessage(ping)] if ping is not None else [])
    decoder, events = websocket.MessageDecoder(), list[websocket.Event]()
    for at in range(0, len(stream), size):
        events += decoder.feed(stream[at : at + size])
    assert messages(events) == want


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(RECORDINGS)),
    st.lists(st.tuples(st.integers(0, 800), st.binary(max_size=12), st.integers(0, 20)), min_size=1, max_size=8),
)
def test_a_changed_recording_is_read_or_refused(name: str, changes: list[tuple[int, bytes, int]]) -> None:
    """Bytes put in, taken out, or changed: events or ProtocolError, and nothing else."""
    data = bytearray(RECORDINGS[name])
    for at, new, cut in changes:
        data[at : at + cut] = new
    decoder = websocket.MessageDecoder()
    try:
        events = decoder.feed(bytes(data))
    except websocket.WebSocketError:
        return
    assert sum(len(event.data) for event in events if isinstance(event, websocket.Part)) <= len(data)
    assert len(decoder._partial) <= 125


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\x01x",  # not masked
        b"\xc2\x81",  # a reserved bit
        b"\x83\x81",  # an unknown kind
        b"\x8b\x80",  # an unknown control frame
        b"\x09\x80",  # a control frame in parts
        b"\x89\xfe",  # a long control frame
        b"\x80\x80",  # a continuation of nothing
        masked(b"x", is_final=False) + b"\x82\x80",  # a new message within one
        b"\x82\xff" + struct.pack(">Q", 1 << 63) + b"mask",
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    """What the RFC forbids a client."""
    with pytest.raises(websocket.WebSocketError):
        websocket.MessageDecoder().feed(data)


def test_a_close_has_its_code() -> None:
    """Without one it is a normal end; a pong that nobody asked for is nothing."""
    assert websocket.MessageDecoder().feed(masked(b"\x03\xe9bye", 8)) == [websocket.Close(1001)]
    assert websocket.MessageDecoder().feed(masked(b"x", 10) + masked(b"", 8)) == [websocket.Close(1000)]


@pytest.mark.parametrize("length", [0, 125, 126, 65535, 65536])
def test_heads_have_the_length(length: int) -> None:
    """In one, two or eight bytes."""
    head = websocket.head(length)
    want = {0: b"\x00", 125: b"\x7d", 126: b"\x7e\0\x7e", 65535: b"\x7e\xff\xff", 65536: b"\x7f\0\0\0\0\0\x01\0\0"}
    assert head == b"\x82" + want[length]
    assert websocket.head(1, is_text=True)[0] == 0x81
