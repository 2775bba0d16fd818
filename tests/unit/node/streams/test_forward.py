"""Port-forward through the kubelet's API, over real TLS, with a test at either end."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.link import sessions
from hpk.node.streams import forward, spdy
from tests import virtual
from tests.fakes import pods as fakes
from tests.fakes.kubelet import World
from tests.fakes.streams import Spdy, WebSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PATH = "/portForward/a/p"
PROTOCOL = "portforward.k8s.io"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that listens, with one running pod; nothing is left of its streams."""
    made = World(tmp_path)
    made.pods.put(fakes.pod(state=fakes.RUNNING))
    async with made.server:
        yield made
        await made.close()
    assert not made.server._streams._tasks
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("forward")]


@pytest.fixture
async def client(world: World) -> AsyncIterator[Spdy]:
    """A client that has upgraded."""
    made = await Spdy.open(world)
    answer = await made.start(PATH, PROTOCOL)
    assert (answer.status, answer.headers["x-stream-protocol-version"]) == (101, PROTOCOL)
    yield made
    made.close()


async def test_a_connection_both_ways_with_half_closes(world: World, client: Spdy) -> None:
    """Each direction ends by itself, and when both have, the error stream ends without a word."""
    data, error = await client.pair(80, 0)
    session = await world.opener.opened.get()
    assert session.request == sessions.Forward(port=80)
    client.send(data, b"GET", is_last=True)
    await session.until_closed(0)
    assert session.sent == {0: b"GET"}
    await session.say(sessions.Data(1, b"200"), sessions.Closed(1))
    await client.until_ended(data)
    await session.say(sessions.Ended())
    await client.until_ended(error)
    assert [bytes(client.streams[number]) for number in (data, error)] == [b"200", b""]
    assert (session.aborted.is_set(), client.reset) == (True, {})


async def test_the_port_may_close_first(world: World, client: Spdy) -> None:
    """Its end is told at once, while the client can still send."""
    data, _ = await client.pair(80, 0)
    session = await world.opener.opened.get()
    await session.say(sessions.Closed(1))
    await client.until_ended(data)
    client.send(data, b"still here")
    assert await session.until_sent(0, 10) == b"still here"


async def test_an_error_is_told_and_the_others_go_on(world: World, client: Spdy) -> None:
    """As kubectl shows it; the data stream is taken away."""
    data, _ = await client.pair(80, 0)
    other = await world.opener.opened.get()
    refused, error = await client.pair(81, 1)
    session = await world.opener.opened.get()
    await session.say(sessions.Ended(error="connection refused", reason="ConnectionRefused"))
    await client.until_ended(refused, error)
    assert client.streams[error] == b"error forwarding port 81 to pod p, uid u1: connection refused"
    assert client.reset == {refused: spdy.CANCEL}
    await other.say(sessions.Data(1, b"fine"))
    assert await client.until(data, 4) == b"fine"


async def test_no_agent_is_an_error_too(world: World, client: Spdy) -> None:
    """Of each connection, not of all."""
    world.opener.error = errors.Retryable("its agent is not connected now")
    _, error = await client.pair(80, 0)
    await client.until_ended(error)
    assert client.streams[error].endswith(b"its agent is not connected now")


async def test_a_reset_connection_is_given_up_without_a_word(world: World, client: Spdy) -> None:
    """client-go resets the data stream when its local end is gone, then waits for the error stream's end."""
    data, error = await client.pair(80, 0)
    session = await world.opener.opened.get()
    client.control(3, struct.pack(">II", data, 5))
    await client.until_ended(error)
    assert session.aborted.is_set()
    assert client.streams[error] == b""


async def test_streams_without_an_id_belong_together(world: World, client: Spdy) -> None:
    """The oldest clients: data right after error."""
    client.stream(streamtype="error", port="80")
    data = client.stream(streamtype="data", port="80")
    session = await world.opener.opened.get()
    await session.say(sessions.Data(1, b"yes"))
    assert await client.until(data, 3) == b"yes"


async def test_bad_streams_are_reset(client: Spdy, monkeypatch: pytest.MonkeyPatch) -> None:
    """No type, no port, a wrong one, or the same half twice."""
    for headers in (
        {"port": "80"},
        {"streamtype": "data"},
        {"streamtype": "data", "port": "0"},
        {"streamtype": "data", "port": "65536"},
        {"streamtype": "data", "port": "-1"},
        {"streamtype": "data", "port": "80a"},
        {"streamtype": "other", "port": "80"},
    ):
        number = client.stream(is_last=False, **headers)
        await client.until_ended(number)
        assert client.reset[number] == spdy.PROTOCOL_ERROR
    client.stream(streamtype="data", port="80", requestid="7")
    twice = client.stream(streamtype="data", port="80", requestid="7")
    await client.until_ended(twice)
    assert twice in client.reset


async def test_half_a_connection_is_waited_for_and_given_up(client: Spdy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second stream may be late, but not for ever."""
    alone = client.stream(streamtype="error", port="80", requestid="1")
    client.control(6, (1).to_bytes(4, "big"))
    while not client.pongs:  # the stream came before it
        await client.frame()
    virtual.pass_at_once(forward.PAIR_SECONDS, monkeypatch)
    await client.until_ended(alone)
    assert client.reset == {alone: spdy.CANCEL}


async def test_too_many_streams_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client cannot make us hold any number; stream numbers must rise."""
    monkeypatch.setattr(forward, "MOST_STREAMS", 50)
    client = await Spdy.open(world)
    await client.start(PATH, PROTOCOL)
    for _ in range(forward.MOST_STREAMS):
        client.stream(streamtype="error", port="80", requestid=f"{client._next}")
    last = client.stream(streamtype="error", port="80", requestid="x")
    await client.until_ended(last)
    assert client.reset == {last: spdy.REFUSED}
    client.writer.write(client.syn(1, {"streamtype": "error", "port": "80"}))
    while not client.has_gone:
        await client.frame()
    client.close()


async def test_many_connections_over_one(world: World, client: Spdy) -> None:
    """Side by side; one whose port takes nothing does not hold up the others."""
    stuck, _ = await client.pair(80, 0)
    stuck_session = await world.opener.opened.get()
    stuck_session.may_send.clear()
    client.send(stuck, bytes(1 << 20))
    for index in range(1, 60):
        data, error = await client.pair(80, index)
        session = await world.opener.opened.get()
        client.send(data, b"%d" % index, is_last=True)
        await session.until_closed(0)
        await session.say(sessions.Data(1, bytes(session.sent[0])), sessions.Ended())
        await client.until_ended(data, error)
        assert client.streams[data] == b"%d" % index


async def test_leaving_gives_all_up(world: World) -> None:
    """When the client is gone, so are its connections, and its half ones."""
    client = await Spdy.open(world)
    await client.start(PATH, PROTOCOL)
    await client.pair(80, 0)
    await client.pair(80, 1)
    client.stream(streamtype="error", port="80", requestid="9")
    both = [await world.opener.opened.get(), await world.opener.opened.get()]
    client.close()
    for session in both:
        await session.aborted.wait()


async def test_through_a_tunnel(world: World) -> None:
    """SPDY's bytes in WebSocket messages, cut up anyhow."""
    socket = await WebSocket.open(world)
    answer = await socket.start(PATH, "SPDY/3.1+portforward.k8s.io")
    assert answer.headers["sec-websocket-protocol"] == "SPDY/3.1+portforward.k8s.io"
    maker = Spdy(socket.reader, socket.writer)
    sent = maker.syn(1, {"streamtype": "error", "port": "80", "requestid": "0"})
    sent += maker.syn(3, {"streamtype": "data", "port": "80", "requestid": "0"})
    sent += struct.pack(">II", 3, 1 << 24 | 2) + b"hi"
    for at in range(0, len(sent), 7):
        socket.send(sent[at : at + 7])
    session = await world.opener.opened.get()
    await session.until_closed(0)
    assert session.sent[0] == b"hi"
    await session.say(sessions.Data(1, b"HI"), sessions.Ended())
    frames = b""
    while not frames.endswith(struct.pack(">II", 1, 1 << 24)):
        opcode, data = await socket.frame()
        assert opcode == 2
        frames += data
    assert struct.pack(">II", 3, 2) + b"HI" in frames
    socket.send(b"\x03\xe8", 8)
    assert (await socket.messages())[-1][0] == 8
    await socket.until_closed()


async def test_by_websocket_with_ports_in_the_query(world: World) -> None:
    """Two channels a port, each beginning with its port; errors on the second; the end when all are over."""
    socket = await WebSocket.open(world)
    assert (await socket.start(f"{PATH}?port=80,81&port=258", "v4.channel.k8s.io")).status == 101
    heads = [await socket.frame() for _ in range(6)]
    want = [(0, 80), (1, 80), (2, 81), (3, 81), (4, 258), (5, 258)]
    assert heads == [(2, bytes((channel,)) + port.to_bytes(2, "little")) for channel, port in want]
    made = [await world.opener.opened.get() for _ in range(3)]
    made.sort(key=lambda one: one.request.port)  # type: ignore[union-attr]
    socket.send(b"\x02hello")
    socket.send(b"\x03to an error channel")
    assert await made[1].until_sent(0, 5) == b"hello"
    await made[1].say(sessions.Data(1, b"there"), sessions.Ended())
    assert await socket.frame() == (2, b"\x02there")
    await made[0].say(sessions.Ended(error="connection refused"))
    assert await socket.frame() == (2, b"\x01error forwarding port 80 to pod p, uid u1: connection refused")
    await made[2].say(sessions.Ended())
    assert await socket.messages() == [(8, b"\x03\xe8")]


@pytest.mark.parametrize("query", ["", "?port=", "?port=0", "?port=x", "?port=65536", "?port=" + "1," * 32 + "1"])
async def test_bad_ports_are_refused(world: World, query: str) -> None:
    """Before the connection changes hands."""
    socket = await WebSocket.open(world)
    answer = await socket.start(PATH + query, "v4.channel.k8s.io")
    assert (answer.status, "port" in answer.body) == (400, True)
    socket.close()
