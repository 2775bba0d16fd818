"""Exec and attach through the kubelet's API, over real TLS, with a test at either end."""

from __future__ import annotations

import asyncio
import base64
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.link import sessions
from hpk.node.streams import remote, spdy, wire
from tests import virtual, waiting
from tests.fakes import pods as fakes
from tests.fakes.kubelet import World
from tests.fakes.streams import Spdy, WebSocket, masked

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from aiohttp import web

    from tests.fakes.sessions import FakeSession

EXEC = "/exec/a/p/c?command=cat&command=a%20b"
ALL = f"{EXEC}&input=1&output=1&error=1"
SUCCESS = {"metadata": {}, "status": "Success"}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that listens, with one running pod; nothing is left of its streams."""
    made = World(tmp_path)
    made.pods.put(fakes.pod(state=fakes.RUNNING))
    async with made.server:
        yield made
        await made.close()
    assert not made.server._streams._tasks


class Seen:
    """The server's ends of the connections that were taken over.

    Attributes:
        wires: In their order.
        paused: Set when one does not read any more.
        full: Set when one cannot send any more.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wires: list[wire.Wire] = []
        self.paused, self.full = asyncio.Event(), asyncio.Event()
        take, hold, pause_writing = wire.Wire.take, wire.Wire.hold, wire.Wire.pause_writing

        def taking(one: wire.Wire, request: web.Request, head: bytes) -> bool:
            self.wires.append(one)
            return take(one, request, head)

        def holding(one: wire.Wire, count: int) -> None:
            hold(one, count)
            if one._is_paused:
                self.paused.set()

        def pausing(one: wire.Wire) -> None:
            pause_writing(one)
            self.full.set()

        monkeypatch.setattr(wire.Wire, "take", taking)
        monkeypatch.setattr(wire.Wire, "hold", holding)
        monkeypatch.setattr(wire.Wire, "pause_writing", pausing)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """A look at the server's side."""
    return Seen(monkeypatch)


async def test_exec_carries_everything(world: World) -> None:
    """Input and its end one way; output, errors and the exit code the other; each stream ends before the status."""
    client = await Spdy.open(world)
    error, stdin, stdout, stderr = await client.remote(ALL, "v4.channel.k8s.io", "stdin", "stdout", "stderr")
    session = await world.opener.opened.get()
    assert world.opener.uids == ["u1"]
    assert session.request == sessions.Exec(container="c", argv=("cat", "a b"), stdin=True)
    client.send(stdin, b"hello ")
    client.send(stdin, b"there", is_last=True)
    assert await session.until_sent(0, 11) == b"hello there"
    await session.until_closed(0)
    await session.say(sessions.Data(1, b"out"), sessions.Data(2, b"err"), sessions.Ended(exit_code=42))
    await client.until_ended(error, stdout, stderr)
    assert [bytes(client.streams[number]) for number in (stdout, stderr)] == [b"out", b"err"]
    told = json.loads(client.streams[error])
    assert (told["status"], told["reason"]) == ("Failure", "NonZeroExitCode")
    assert told["details"] == {"causes": [{"reason": "ExitCode", "message": "42"}]}
    assert session.aborted.is_set()
    client.close()


@pytest.mark.parametrize(
    ("ended", "text", "status"),
    [
        (sessions.Ended(exit_code=0), b"", SUCCESS),
        (
            sessions.Ended(exit_code=3),
            b"command terminated with non-zero exit code: exit status 3",
            {"reason": "NonZeroExitCode"},
        ),
        (
            sessions.Ended(error="no such container", reason="ContainerNotFound"),
            b"Internal error occurred: error executing command in container: no such container",
            {"reason": "InternalError", "code": 500},
        ),
    ],
)
async def test_how_it_ended_is_told_in_every_version(
    world: World, ended: sessions.Ended, text: bytes, status: dict[str, object]
) -> None:
    """As an object from version 4 on, as text before, over SPDY and over WebSockets."""
    for protocol in ("v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"):
        client = await Spdy.open(world)
        error, _ = await client.remote(f"{EXEC}&output=1", protocol, "stdout")
        await (await world.opener.opened.get()).say(ended)
        await client.until_ended(error)
        check(bytes(client.streams[error]), text, status, is_json=protocol.startswith("v4"))
        client.close()
    for protocol in ("", "channel.k8s.io", "v4.channel.k8s.io", "v5.channel.k8s.io"):
        socket = await WebSocket.open(world)
        answer = await socket.start(f"{EXEC}&output=1", *([protocol] if protocol else []))
        assert (answer.status, answer.headers.get("sec-websocket-protocol", "")) == (101, protocol)
        await (await world.opener.opened.get()).say(ended)
        told = [data[1:] for _, data in await socket.messages() if data[:1] == b"\3" and data[1:] != b"\xe8"]
        check(b"".join(told), text, status, is_json=protocol.startswith(("v4", "v5")))
        await socket.until_closed()


def check(told: bytes, text: bytes, status: dict[str, object], *, is_json: bool) -> None:
    """Whether it is what was to be told."""
    if is_json:
        assert json.loads(told).items() >= status.items()
    else:
        assert told == text


async def test_a_command_that_is_not_there_is_explained_on_stderr(world: World) -> None:
    """The status has only the code; what a shell would have said comes where a shell would have said it."""
    client = await Spdy.open(world)
    error, _, stderr = await client.remote(f"{EXEC}&output=1&error=1", "v4.channel.k8s.io", "stdout", "stderr")
    await (await world.opener.opened.get()).say(sessions.Ended(exit_code=127, error="cat: not found"))
    await client.until_ended(error, stderr)
    assert client.streams[stderr] == b"cat: not found\n"
    assert b'"127"' in client.streams[error]
    client.close()


async def test_a_terminal_has_one_output_and_a_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stderr is not opened; the program starts with the first size; others come as they change, cut anyhow."""
    monkeypatch.setattr(remote, "SIZE_SECONDS", 60)
    client = await Spdy.open(world)
    path = f"{ALL}&tty=1"
    numbers = await client.remote(path, "v4.channel.k8s.io", "stdin", "stdout", "resize")
    client.send(numbers[1], b"typed ahead")
    assert world.opener.opened.empty()
    client.send(numbers[3], b'{"Width":132,"Height":43}{"Width":80,"Height":24}\n{"Width"')
    session = await world.opener.opened.get()
    assert session.request == sessions.Exec(
        container="c", argv=("cat", "a b"), stdin=True, stdout=True, stderr=False, tty=True, size=(132, 43)
    )
    assert await session.until_sent(0, 11) == b"typed ahead"
    client.send(numbers[3], b':100,"Height":30}{"Width":"x"}{"Width":0,"Height":1}{}{"Width":9,"Height":9}')
    while len(session.sizes) < 4:
        session.heard.clear()
        await session.heard.wait()
    assert session.sizes == [(132, 43), (80, 24), (100, 30), (9, 9)]  # the first again, for older agents
    client.close()
    await session.aborted.wait()


@pytest.mark.parametrize("how", ["says nothing", "closes the stream"])
async def test_a_client_that_tells_no_size_has_its_terminal(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It is not waited for for ever."""
    monkeypatch.setattr(remote, "SIZE_SECONDS", 60)
    client = await Spdy.open(world)
    numbers = await client.remote(f"{ALL}&tty=1", "v4.channel.k8s.io", "stdin", "stdout", "resize")
    if how == "closes the stream":
        client.send(numbers[3], b"", is_last=True)
    else:
        await waiting.turns()
        virtual.pass_at_once(remote.SIZE_SECONDS, monkeypatch)
    session = await world.opener.opened.get()
    assert session.request == sessions.Exec(
        container="c", argv=("cat", "a b"), stdin=True, stdout=True, stderr=False, tty=True
    )
    client.close()
    await session.aborted.wait()


@pytest.mark.parametrize("protocol", ["channel.k8s.io", "base64.channel.k8s.io", "v4.base64.channel.k8s.io"])
async def test_exec_over_older_websockets(world: World, protocol: str) -> None:
    """First an empty message, then channels by number; a client's text is taken as bytes."""
    socket = await WebSocket.open(world)
    assert (await socket.start(ALL, protocol)).status == 101
    is_text = "base64" in protocol
    kind, one = (1, b"1") if is_text else (2, b"\1")
    assert await socket.frame() == (kind, one)
    session = await world.opener.opened.get()
    sent = b"0" + base64.b64encode(b"hello") if is_text else b"\0hello"
    socket.send(sent[:3], 1, is_final=False)
    socket.send(sent[3:], 0)
    socket.send(b"\x07unknown")
    socket.send(b"")
    assert await session.until_sent(0, 5) == b"hello"
    await session.say(sessions.Data(1, b"x" * 1000), sessions.Ended(exit_code=0))
    found = await socket.messages()
    assert found[0] == (kind, one + (base64.b64encode(b"x" * 1000) if is_text else b"x" * 1000))
    assert found[-1] == (8, b"\x03\xe8")
    await socket.until_closed()


async def test_version_5_can_close_stdin(world: World) -> None:
    """What 255 names is at its end."""
    socket = await WebSocket.open(world)
    await socket.start(ALL, "v5.channel.k8s.io", "v4.channel.k8s.io")
    session = await world.opener.opened.get()
    socket.send(b"\0in")
    socket.send(b"\xff\0")
    await session.until_closed(0)
    assert session.sent[0] == b"in"
    socket.send(b"like this", 9)
    await socket.frame()
    assert await socket.frame() == (10, b"like this")
    await session.say(sessions.Ended(exit_code=0))
    await socket.messages()


async def test_attach(world: World) -> None:
    """The container's own process: there is no exit code, and an error is an attach's."""
    client = await Spdy.open(world)
    error, _, _ = await client.remote("/attach/a/p/u1/c?input=1&output=1", "v4.channel.k8s.io", "stdin", "stdout")
    session = await world.opener.opened.get()
    assert session.request == sessions.Attach(container="c", stdin=True, stdout=True, stderr=False)
    await session.say(sessions.Ended())
    await client.until_ended(error)
    assert json.loads(client.streams[error]) == SUCCESS
    client.close()


async def test_attach_to_a_terminal(world: World) -> None:
    """Whether there is one the pod says: it cannot be changed any more."""
    pod = fakes.pod(state=fakes.RUNNING)
    pod["spec"]["containers"][0]["tty"] = True
    world.pods.put(pod)
    client = await Spdy.open(world)
    await client.remote("/attach/a/p/c?output=1", "v4.channel.k8s.io", "stdout")
    session = await world.opener.opened.get()
    assert session.request == sessions.Attach(container="c", stdout=True, stderr=False, tty=True)
    client.close()


async def test_no_agent_is_said_in_words(world: World) -> None:
    """When no session can be had, the client hears why."""
    world.opener.error = errors.Retryable("Cannot open a session in pod u1: its agent is not connected now")
    client = await Spdy.open(world)
    error, _ = await client.remote(f"{EXEC}&output=1", "v4.channel.k8s.io", "stdout")
    await client.until_ended(error)
    assert "agent is not connected" in json.loads(client.streams[error])["message"]
    client.close()


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        (EXEC, 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/a/p/c?output=1", 400, "you must specify a command"),
        ("/exec/a/nosuch/c?command=x&output=1", 404, "pod does not exist"),
        ("/exec/a/p/other-uid/c?command=x&output=1", 404, "pod does not exist"),
        ("/exec/a/p/nosuch?command=x&output=1", 404, 'container not found ("nosuch")'),
        ("/exec/a/p/i?command=x&output=1", 400, 'container "i" in pod "p" is not running'),
        ("/portForward/a/p/other-uid", 404, "pod does not exist"),
    ],
)
async def test_what_cannot_be_is_said_in_http(world: World, path: str, status: int, text: str) -> None:
    """The API server relays it as it is; no session was opened."""
    client = await Spdy.open(world)
    answer = await client.start(path, "v4.channel.k8s.io", "portforward.k8s.io")
    assert (answer.status, answer.body) == (status, text)
    assert world.opener.opened.empty()
    # The connection is still HTTP's.
    assert (await client.ask("GET", "/healthz", [])).body == "ok"
    client.close()


async def test_protocols_are_agreed_on_or_refused(world: World) -> None:
    """The first of the client's that we know; 403 with ours if there is none; 400 without any, or no upgrade."""
    client = await Spdy.open(world)
    answer = await client.start(f"{EXEC}&output=1", "v9.channel.k8s.io")
    assert answer.status == 403
    assert answer.headers["x-accepted-stream-protocol-versions"] == "channel.k8s.io"  # the last of four
    assert (await client.start(f"{EXEC}&output=1")).status == 400
    assert (await client.ask("POST", f"{EXEC}&output=1", [("Content-Length", "0")])).status == 400
    assert (await client.ask("PUT", f"{EXEC}&output=1", [("Content-Length", "0")])).status == 405
    with_body = [("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "1")]
    assert (await client.ask("POST", f"{EXEC}&output=1", with_body)).status == 400
    client.close()
    other = await Spdy.open(world)
    answer = await other.start(f"{EXEC}&output=1", "v5.channel.k8s.io, v4.channel.k8s.io", "v3.channel.k8s.io")
    assert (answer.status, answer.headers["x-stream-protocol-version"]) == (101, "v4.channel.k8s.io")
    other.close()
    for protocols, key, version, status in (
        (("v9.channel.k8s.io",), "", "13", 403),
        (("v4.channel.k8s.io",), "x", "13", 400),
        (("v4.channel.k8s.io",), "", "8", 400),
    ):
        socket = await WebSocket.open(world)
        assert (await socket.start(f"{EXEC}&output=1", *protocols, key=key, version=version)).status == status
        socket.close()


@pytest.mark.parametrize("how", ["vanishes", "goes away", "resets the error stream", "sends nonsense"])
async def test_a_client_that_goes_ends_its_session(world: World, how: str) -> None:
    """However it goes: the program in the pod is given up, and nothing is left."""
    client = await Spdy.open(world)
    error, *_ = await client.remote(ALL, "v4.channel.k8s.io", "stdin", "stdout", "stderr")
    session = await world.opener.opened.get()
    match how:
        case "vanishes":
            client.close()
        case "goes away":
            for number in (error, *range(3, 9, 2)):
                client.control(3, number.to_bytes(4, "big") + bytes((0, 0, 0, 5)))
            client.control(7, bytes(8))
        case "resets the error stream":
            client.control(3, error.to_bytes(4, "big") + bytes((0, 0, 0, 5)))
        case _:
            client.control(1, b"nonsense")
    await session.aborted.wait()
    client.close()


@pytest.mark.parametrize("how", ["vanishes", "closes", "sends nonsense", "sends bad base64"])
async def test_a_websocket_that_goes_ends_its_session(world: World, how: str) -> None:
    """The same."""
    socket = await WebSocket.open(world)
    await socket.start(ALL, "base64.channel.k8s.io")
    session = await world.opener.opened.get()
    match how:
        case "vanishes":
            socket.close()
        case "closes":
            socket.send(b"\x03\xe9", 8)
            assert (await socket.messages())[-1] == (8, b"\x03\xe8")
        case "sends nonsense":
            socket.writer.write(b"\xff\xff")
            assert (await socket.messages())[-1] == (8, b"\x03\xea")
        case _:
            socket.send(b"0!!!!")
            assert (await socket.messages())[-1] == (8, b"\x03\xeb")
    await session.aborted.wait()
    socket.close()


async def test_a_program_that_reads_nothing_makes_its_client_wait(world: World, seen: Seen) -> None:
    """Little is held for it; when it reads on, nothing is missing."""
    client = await Spdy.open(world)
    _, stdin, _ = await client.remote(f"{EXEC}&input=1&output=1", "v4.channel.k8s.io", "stdin", "stdout")
    session = await world.opener.opened.get()
    session.may_send.clear()
    part = bytes(range(256)) * 4096
    data = part * 16
    for _ in range(16):
        client.send(stdin, part)
    await seen.paused.wait()
    assert seen.wires[0]._held < 2 * wire.MOST_HELD_BYTES
    assert not session.sent
    session.may_send.set()
    assert await session.until_sent(0, len(data)) == data
    client.close()


async def test_a_client_that_vanishes_unread_is_noticed(world: World, seen: Seen) -> None:
    """Although nobody reads from its connection at the moment."""
    client = await Spdy.open(world)
    _, stdin, _ = await client.remote(f"{EXEC}&input=1&output=1", "v4.channel.k8s.io", "stdin", "stdout")
    session = await world.opener.opened.get()
    session.may_send.clear()
    client.send(stdin, bytes(wire.MOST_HELD_BYTES + wire.READ_BYTES + 50_000))
    await seen.paused.wait()
    client.close()
    while not session.aborted.is_set():
        seen.wires[0]._look_after()
        await asyncio.sleep(0)


async def test_a_client_that_reads_nothing_makes_its_program_wait(world: World, seen: Seen) -> None:
    """What the program writes is not taken from it, beyond a bound; when the client reads on, nothing is missing."""
    client = await Spdy.open(world)
    error, stdout = await client.remote(f"{EXEC}&output=1", "v4.channel.k8s.io", "stdout")
    session = await world.opener.opened.get()
    chunk, count = bytes(range(256)) * 1024, 128
    client.reader._transport.pause_reading()  # type: ignore[attr-defined]
    saying = asyncio.create_task(session.say(*[sessions.Data(1, chunk)] * count, sessions.Ended(exit_code=0)))
    await seen.full.wait()
    assert not saying.done()
    assert session.events.full()
    client.reader._transport.resume_reading()  # type: ignore[attr-defined]
    await client.until_ended(error, stdout)
    assert client.streams[stdout] == chunk * count
    client.close()


async def test_pings_are_answered_and_ours_are_not(world: World) -> None:
    """The API server pings every 5 s, with odd numbers; even ones would be answers to ours."""
    client = await Spdy.open(world)
    await client.remote(f"{EXEC}&output=1", "v4.channel.k8s.io", "stdout")
    for number in (2, 7):
        client.control(6, number.to_bytes(4, "big"))
    while not client.pongs:
        await client.frame()
    assert client.pongs == [7]
    client.close()


async def test_streams_that_do_not_come(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while the client is hung up on; a stream that was not asked for is reset."""
    client = await Spdy.open(world)
    await client.start(f"{EXEC}&output=1", "v4.channel.k8s.io")
    number = client.stream(streamtype="stdin")
    await client.until_ended(number)
    assert client.reset == {number: spdy.PROTOCOL_ERROR}
    virtual.pass_at_once(remote.STREAMS_SECONDS, monkeypatch)
    while not client.has_gone:
        await client.frame()
    await client.until_closed()
    assert world.opener.opened.empty()


async def test_a_client_that_does_not_hang_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, for it may still be reading; then it is cut off."""
    client = await Spdy.open(world)
    error, _ = await client.remote(f"{EXEC}&output=1", "v4.channel.k8s.io", "stdout")
    await (await world.opener.opened.get()).say(sessions.Ended(exit_code=0))
    await client.until_ended(error)
    await waiting.turns()
    virtual.pass_at_once(wire.FINISH_SECONDS, monkeypatch)
    await client.until_closed()


async def test_when_the_kubelet_stops_the_client_hears_it(tmp_path: Path) -> None:
    """A status with the reason, and the end of the connection; the program is given up."""
    world = World(tmp_path)
    world.pods.put(fakes.pod(state=fakes.RUNNING))
    async with world.server:
        client = await Spdy.open(world)
        error, _ = await client.remote(f"{EXEC}&output=1", "v4.channel.k8s.io", "stdout")
        socket = await WebSocket.open(world)
        await socket.start(f"{EXEC}&output=1", "v4.channel.k8s.io")
        both = [await world.opener.opened.get(), await world.opener.opened.get()]
    await client.until_ended(error)
    assert "the kubelet is stopping" in json.loads(client.streams[error])["message"]
    assert "the kubelet is stopping" in str(await socket.messages())
    assert all(session.aborted.is_set() for session in both)
    await world.close()


async def test_run(world: World) -> None:
    """Both outputs in one body; what failed says so, with what it printed."""
    api = world.apiserver()

    async def run(path: str, *events: sessions.Event) -> tuple[int, str]:
        asking = asyncio.create_task(api.post(path).__aenter__())
        if events:
            session = await world.opener.opened.get()
            assert session.request == sessions.Exec(container="c", argv=("ls", "-l", "/"))
            await session.say(*events)
            await session.aborted.wait()
        answer = await asking
        return answer.status, await answer.text()

    path = "/run/a/p/c?cmd=ls+-l+/"
    good = (sessions.Data(1, b"out\n"), sessions.Data(2, b"err\n"))
    assert await run(path, *good, sessions.Ended(exit_code=0)) == (200, "out\nerr\n")
    status, text = await run("/run/a/p/u1/c?cmd=ls+-l+/", *good, sessions.Ended(exit_code=2))
    assert (status, text) == (500, "command 'ls -l /' failed: exit code 2: out\nerr\n")
    assert await run("/run/a/p/c") == (400, "you must specify a command")
    assert (await run("/run/a/nosuch/c?cmd=x"))[0] == 404
    async with api.get(path) as response:
        assert response.status == 405


async def test_many_sessions_at_once(world: World) -> None:
    """Each has its own bytes, and all end."""
    count = 20

    async def one(index: int) -> None:
        client = await Spdy.open(world)
        error, stdin, stdout = await client.remote(f"{EXEC}&input=1&output=1", "v4.channel.k8s.io", "stdin", "stdout")
        client.send(stdin, b"%d" % index, is_last=True)
        await client.until_ended(error, stdout)
        assert client.streams[stdout] == b"%d" % index
        client.close()

    async def pod() -> None:
        async def echo(session: FakeSession) -> None:
            await session.until_closed(0)
            await session.say(sessions.Data(1, bytes(session.sent[0])), sessions.Ended(exit_code=0))

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(echo(await world.opener.opened.get()))

    async with asyncio.TaskGroup() as group:
        group.create_task(pod())
        for index in range(count):
            group.create_task(one(index))


def new_inbox() -> wire.Inbox:
    """Of a connection that has room for everything."""
    carrier: Any = SimpleNamespace(hold=lambda _: None, release=lambda _: None)
    return wire.Inbox(carrier)


async def test_a_size_that_came_while_the_kubelet_was_late_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is over, and it is there."""
    inbox = new_inbox()
    loop = asyncio.get_running_loop()
    first = asyncio.create_task(remote.Sizes(inbox).first())
    await asyncio.sleep(0)
    virtual.pass_at_once(remote.SIZE_SECONDS, monkeypatch)
    loop.call_soon(inbox.put, b'{"Width":3,"Height":4}')
    assert await first == (3, 4)


def test_sizes_of_hostile_clients() -> None:
    """Endless numbers, deep nesting and no end cost nothing and raise nothing."""
    reader = remote.Sizes(new_inbox())
    assert reader.feed(b"[" * 100_000) == []
    assert reader.feed(b"}" * 10) == []
    assert reader.feed(b'{"Width":1e999,"Height":1}{"Width":' + b"9" * 5000 + b"}") == []
    assert reader.feed(b'{"Width":3,"Height":4}') == [(3, 4)]


async def test_a_large_message_is_not_held_as_a_whole(world: World) -> None:
    """A client that writes all its input in one message gets it through, a bit at a time."""
    socket = await WebSocket.open(world)
    await socket.start(f"{EXEC}&input=1&output=1", "v4.channel.k8s.io")
    session = await world.opener.opened.get()
    data = b"\0" + b"abcdefgh" * 8192
    socket.writer.write(masked(data))
    assert await session.until_sent(0, len(data) - 1) == data[1:]
    socket.close()
