"""Sessions over the link: both ends, over loopback, with real certificates and hand-written agents."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import message
from hypothesis import given
from hypothesis import strategies as st

from hpk import errors
from hpk.link import agent_end, client, kubelet_end, link_pb2, sessions, wire
from tests import background, virtual, waiting
from tests.fakes import link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

UID = "pod-1"
OUT = sessions.STDOUT
COMMAND = sessions.Exec(container="c", argv=("true",))


class Agent:
    """Serves every session by the script that its first word names."""

    def __init__(self) -> None:
        self.requests: list[sessions.Request] = []
        self.seen: list[object] = []
        self.given_up = asyncio.Event()
        self.sent = 0
        self.release = asyncio.Event()

    async def serve(self, request: sessions.Request, client_: agent_end.Peer) -> sessions.Ended:
        self.requests.append(request)
        assert isinstance(request, sessions.Exec)
        try:
            return await getattr(self, request.argv[0])(client_)  # type: ignore[no-any-return]
        except (asyncio.CancelledError, agent_end.Gone):
            self.given_up.set()
            raise

    async def true(self, _client: agent_end.Peer) -> sessions.Ended:
        return sessions.Ended(exit_code=0)

    async def echo(self, client_: agent_end.Peer) -> sessions.Ended:
        """What comes goes back, until the client closes its side; then it has the last word."""
        while isinstance(event := await client_.receive(), sessions.Data | agent_end.Resize):
            self.seen.append(event)
            if isinstance(event, sessions.Data):
                await client_.send(OUT, event.data)
        self.seen.append(event)
        await client_.send(sessions.STDERR, b"bye")
        await client_.close(sessions.STDERR)
        return sessions.Ended(exit_code=3)

    async def flood(self, client_: agent_end.Peer) -> sessions.Ended:
        """Writes as much as it may."""
        while True:
            await client_.send(OUT, bytes(sessions.CHUNK))
            self.sent += sessions.CHUNK

    async def deaf(self, _client: agent_end.Peer) -> sessions.Ended:
        """Reads nothing of what is sent to it."""
        await self.release.wait()
        return sessions.Ended(exit_code=0)

    async def hasty(self, client_: agent_end.Peer) -> sessions.Ended:
        """Gives up what it does now and then, in the middle of it."""
        for _ in range(20):
            talking = [
                asyncio.create_task(client_.send(OUT, bytes(sessions.CHUNK))),
                asyncio.create_task(client_.receive()),
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await background.end(*talking)
        return sessions.Ended(exit_code=5)

    async def broken(self, _client: agent_end.Peer) -> sessions.Ended:
        raise ValueError("no idea")


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[link.Kubelet]:
    """A kubelet that listens."""
    made = link.Kubelet(tmp_path)
    await made.listen()
    yield made
    await made.close()


@pytest.fixture
async def agent(kubelet: link.Kubelet) -> Agent:
    """An agent on the line."""
    made = Agent()
    kubelet.dial(UID, serve=made.serve)
    await kubelet.until(("connected", UID))
    return made


def command(*argv: str) -> sessions.Exec:
    """A command for the agent."""
    return sessions.Exec(container="c", argv=argv)


async def collect(session: sessions.Session) -> tuple[dict[int, bytes], list[int], sessions.Ended]:
    """All that a session brings: data by channel, channels in the order of their ends, and how it ended."""
    data: dict[int, bytes] = {}
    closed: list[int] = []
    async with asyncio.timeout(link.TIMEOUT):
        while not isinstance(event := await session.receive(), sessions.Ended):
            if isinstance(event, sessions.Data):
                assert 0 < len(event.data) <= sessions.CHUNK
                data[event.channel] = data.get(event.channel, b"") + event.data
            else:
                closed.append(event.channel)
    return data, closed, event


async def stalled(kubelet: link.Kubelet, sent: Callable[[], int]) -> int:
    """Return how much a flood could send before it had to wait: a whole other session came and went meanwhile."""
    before = -1
    while sent() != before:
        before = sent()
        await collect(await kubelet.server.open(UID, COMMAND))
    return before


async def test_a_session_carries_every_byte_both_ways_and_its_end(kubelet: link.Kubelet, agent: Agent) -> None:
    """Large data arrives whole, a half-close ends one direction only, and the exit code comes last."""
    session = await kubelet.server.open(UID, command("echo"))
    sent = bytes(range(256)) * 4096 + b"tail"

    async def feed() -> None:
        await session.send(sessions.STDIN, sent)
        await session.resize(width=80, height=24)
        await session.close(sessions.STDIN)
        await session.close(sessions.STDIN)
        await session.send(sessions.STDIN, b"dropped: the channel is closed")

    feeding = asyncio.create_task(feed())
    data, closed, ended = await collect(session)
    await feeding
    assert data == {OUT: sent, sessions.STDERR: b"bye"}
    assert closed == [sessions.STDERR]
    assert ended == sessions.Ended(exit_code=3)
    assert agent.seen[-2:] == [agent_end.Resize(80, 24), sessions.Closed(sessions.STDIN)]
    await session.abort()


async def test_a_request_arrives_as_it_was_made(kubelet: link.Kubelet, agent: Agent) -> None:
    """Arguments are byte-exact, even those that are no text."""
    request = sessions.Exec(
        container="c", argv=("true", "a b", "", "\udcff", "ü"), stdin=True, stdout=False, stderr=True, tty=True
    )
    await collect(await kubelet.server.open(UID, request))
    assert agent.requests == [request]


@given(
    st.one_of(
        st.builds(
            sessions.Exec,
            container=st.text(),
            argv=st.lists(st.text()).map(tuple),
            stdin=st.booleans(),
            stdout=st.booleans(),
            stderr=st.booleans(),
            tty=st.booleans(),
            size=st.none() | st.tuples(st.integers(1, 65535), st.integers(1, 65535)),
        ),
        st.builds(sessions.Attach, container=st.text(), stdin=st.booleans(), tty=st.booleans()),
        st.builds(sessions.Forward, port=st.integers(1, 65535)),
    )
)
def test_requests_survive_the_wire(request_: sessions.Request) -> None:
    """Whatever is asked for is what the agent reads."""
    assert wire.request(wire.open_message("s", request_)) == request_


DATA = st.builds(sessions.Data, st.integers(0, 2**32 - 1), st.binary(min_size=1, max_size=300))


@given(DATA)
def test_data_is_what_protobuf_makes_of_it(data: sessions.Data) -> None:
    """Byte for byte, so that an agent of another version reads it; and what protobuf wrote is read."""
    inner = link_pb2.Data(channel=data.channel, data=data.data)
    for codec, kind in ((wire.FROM_AGENT, link_pb2.FromAgent), (wire.TO_AGENT, link_pb2.ToAgent)):
        raw = kind(data=inner).SerializeToString()
        assert codec.dump(data) == raw
        assert codec.load(raw) == data


@given(DATA, st.integers(0, 320), st.binary(max_size=20))
def test_no_bytes_are_taken_for_other_data(data: sessions.Data, at: int, other: bytes) -> None:
    """Damaged, cut, or with fields of a newer program: read as protobuf reads it, or refused as by protobuf."""
    whole = wire.FROM_AGENT.dump(data)
    for raw in (whole[:at], whole[:at] + other + whole[at:], whole[:at] + other + whole[at + len(other) :]):
        try:
            wanted = link_pb2.FromAgent.FromString(raw)
        except message.DecodeError:
            with pytest.raises(message.DecodeError):
                wire.FROM_AGENT.load(raw)
            continue
        found = wire.FROM_AGENT.load(raw)
        if isinstance(found, sessions.Data):
            assert (found.channel, found.data) == (wanted.data.channel, wanted.data.data)
        else:
            assert found == wanted


@pytest.mark.parametrize("size", [1, 127, 128, 1 << 14, sessions.CHUNK])
def test_data_of_every_size(size: int) -> None:
    """Lengths take one to several bytes."""
    data = sessions.Data(1, bytes(size))
    assert wire.FROM_AGENT.load(wire.FROM_AGENT.dump(data)) == data
    assert link_pb2.FromAgent.FromString(wire.FROM_AGENT.dump(data)).data.data == data.data


def test_other_messages_pass_the_codec() -> None:
    """Ends, sizes, and an agent's first word."""
    for event in (sessions.Closed(1), sessions.Ended(exit_code=3), sessions.Ended(error="e", reason="R")):
        assert wire.event(wire.FROM_AGENT.load(wire.FROM_AGENT.dump(wire.from_agent(event)))) == event
    resize = link_pb2.ToAgent(resize=link_pb2.Resize(width=3, height=4))
    assert wire.TO_AGENT.load(wire.TO_AGENT.dump(resize)) == resize


def test_what_a_newer_end_says_is_not_misread() -> None:
    """A request or an event of an unknown kind is none, rather than another."""
    assert wire.request(link_pb2.Open(session="s")) is None
    assert wire.event(link_pb2.FromAgent()) is None


async def test_no_agent_no_session(kubelet: link.Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the pod and says that its agent is not connected; nothing is held for it."""
    asking = asyncio.create_task(kubelet.server.open("pod-9", COMMAND))
    await waiting.turns()
    virtual.pass_at_once(kubelet_end.ARRIVAL_SECONDS, monkeypatch)
    with pytest.raises(errors.AgentUnavailable, match=r"pod-9.*not connected"):
        await asking
    assert not kubelet.server._opener._counts
    assert not kubelet.server._opener._waiting


async def test_an_agent_that_is_about_to_connect_is_waited_for(kubelet: link.Kubelet) -> None:
    """A busy node's container may be told to run before its agent is on the line; others' arrivals change nothing."""
    asking = asyncio.create_task(kubelet.server.open(UID, command("echo")))
    kubelet.dial("pod-2")
    await kubelet.until(("connected", "pod-2"))
    assert not asking.done()
    kubelet.dial(UID, serve=Agent().serve)
    session = await asking
    await session.close(sessions.STDIN)
    assert (await collect(session))[2].exit_code == 3


async def test_an_agent_from_before_sessions_is_said_to_be_too_old(
    kubelet: link.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that an older program started runs on; who wants to exec into it learns why that fails."""
    monkeypatch.setattr(client, "PROTOCOL", 1)
    kubelet.dial(UID)
    await kubelet.until(("connected", UID))
    with pytest.raises(errors.AgentUnavailable, match="recreate the pod"):
        await kubelet.server.open(UID, COMMAND)


async def test_an_agent_that_does_not_call_back_is_not_waited_for(
    kubelet: link.Kubelet, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time-out an error says so, and the room of the session is free again."""
    is_asked = asyncio.Event()
    with monkeypatch.context() as patch:
        patch.setattr(agent_end.Sessions, "open", lambda *_: is_asked.set())
        asking = asyncio.create_task(kubelet.server.open(UID, COMMAND))
        await is_asked.wait()
        virtual.pass_at_once(kubelet_end.ANSWER_SECONDS, monkeypatch)
        with pytest.raises(errors.AgentUnavailable, match="did not answer"):
            await asking
    assert not kubelet.server._opener._counts
    await collect(await kubelet.server.open(UID, COMMAND))


async def test_two_hundred_sessions_at_once(kubelet: link.Kubelet, agent: Agent) -> None:
    """Each has its own data and its own end."""

    async def one(number: int) -> None:
        session = await kubelet.server.open(UID, command("echo"))
        await session.send(sessions.STDIN, b"%d" % number)
        await session.close(sessions.STDIN)
        data, _, ended = await collect(session)
        assert data[OUT] == b"%d" % number
        assert ended.exit_code == 3

    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(one(number))
    await waiting.until(lambda: not kubelet.server._opener._counts)  # gRPC ends the calls when it likes


async def test_too_many_sessions_are_refused_and_the_others_go_on(
    kubelet: link.Kubelet, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more than a pod may have is an error for who asks; when one has ended there is room again."""
    monkeypatch.setattr(kubelet_end, "MOST_FOR_POD", 1)
    session = await kubelet.server.open(UID, command("echo"))
    with pytest.raises(errors.AgentUnavailable, match="too many"):
        await kubelet.server.open(UID, COMMAND)
    await session.close(sessions.STDIN)
    assert (await collect(session))[2].exit_code == 3


async def test_a_client_that_does_not_read_holds_up_only_its_own_session(kubelet: link.Kubelet, agent: Agent) -> None:
    """The agent has to wait after a bounded amount; reports and other sessions go on; what comes late is all there."""
    slow = await kubelet.server.open(UID, command("flood"))
    sent = await stalled(kubelet, lambda: agent.sent)
    assert sent < 4 << 20
    kubelet._clients[0].publish(7, json.dumps({"sequence": 7}).encode())
    await kubelet.until((UID, {"sequence": 7}))
    assert (await collect(await kubelet.server.open(UID, COMMAND)))[2].exit_code == 0
    got = 0
    async with asyncio.timeout(link.TIMEOUT):
        while got < sent + (8 << 20):
            event = await slow.receive()
            assert isinstance(event, sessions.Data)
            got += len(event.data)
    await slow.abort()


async def test_a_program_that_does_not_read_holds_up_its_sender(kubelet: link.Kubelet, agent: Agent) -> None:
    """Sending waits after a bounded amount, can be cancelled, and abort still ends it."""
    session = await kubelet.server.open(UID, command("deaf"))
    sent = 0

    async def feed() -> None:
        nonlocal sent
        while sent < 64 << 20:
            await session.send(sessions.STDIN, bytes(1 << 16))
            sent += 1 << 16

    feeding = asyncio.create_task(feed())
    await stalled(kubelet, lambda: sent)
    assert 0 < sent < 4 << 20
    await background.end(feeding)
    await session.abort()
    async with asyncio.timeout(link.TIMEOUT):
        await agent.given_up.wait()
        await session.send(sessions.STDIN, b"dropped")


async def test_abort_makes_the_agent_give_up(kubelet: link.Kubelet, agent: Agent) -> None:
    """A client that has gone ends what it started, whatever that does; twice is once."""
    session = await kubelet.server.open(UID, command("flood"))
    await session.receive()
    await session.abort()
    await session.abort()
    async with asyncio.timeout(link.TIMEOUT):
        await agent.given_up.wait()


async def test_receiving_may_be_cancelled(kubelet: link.Kubelet, agent: Agent) -> None:
    """No event is lost by a receiver that gave up waiting."""
    session = await kubelet.server.open(UID, command("echo"))
    for _ in range(3):
        receiving = asyncio.create_task(session.receive())
        await waiting.turns()
        await background.end(receiving)
    await session.send(sessions.STDIN, b"x")
    await session.close(sessions.STDIN)
    assert (await collect(session))[0][OUT] == b"x"


async def test_a_lost_link_ends_sessions_with_an_error(kubelet: link.Kubelet, agent: Agent) -> None:
    """The kubelet's side hears Ended, the agent's side gives up; the agent dials again and new sessions work."""
    session = await kubelet.server.open(UID, command("deaf"))
    await kubelet.server.stop(grace_seconds=0.1)
    assert (await collect(session))[2].reason == "LinkLost"
    async with asyncio.timeout(link.TIMEOUT):
        await agent.given_up.wait()
    kubelet.heard.clear()
    await kubelet.listen()
    await kubelet.until(("connected", UID))
    assert (await collect(await kubelet.server.open(UID, COMMAND)))[2].exit_code == 0


async def test_an_agent_that_vanishes_ends_its_sessions(kubelet: link.Kubelet, agent: Agent) -> None:
    """Whether they wait for data, for room, or for the agent's call."""
    session = await kubelet.server.open(UID, command("deaf"))
    assert isinstance(session, kubelet_end.KubeletSession)

    async def feed() -> None:
        while not session.over.is_set():
            await session.send(sessions.STDIN, bytes(1 << 20))

    feeding = asyncio.create_task(feed())
    receiving = asyncio.create_task(collect(session))
    await asyncio.sleep(0)
    await kubelet._clients[0].close()
    assert (await receiving)[2] == kubelet_end.LOST
    async with asyncio.timeout(link.TIMEOUT):
        await feeding


async def test_the_agent_may_give_up_a_part_of_a_session(kubelet: link.Kubelet, agent: Agent) -> None:
    """A write or a read that is cancelled does not end the session, nor lose its end."""
    _, _, ended = await collect(await kubelet.server.open(UID, command("hasty")))
    assert ended == sessions.Ended(exit_code=5)


async def test_an_agent_can_wait_for_its_last_sessions(
    kubelet: link.Kubelet, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session is over for the agent only when its client has read how it ended."""
    has_said = asyncio.Event()
    real = agent_end.Peer.end

    async def end(self: agent_end.Peer, ended: sessions.Ended) -> None:
        await real(self, ended)
        has_said.set()

    monkeypatch.setattr(agent_end.Peer, "end", end)
    session = await kubelet.server.open(UID, COMMAND)
    idle = asyncio.create_task(kubelet._clients[0].idle())
    await has_said.wait()
    await waiting.turns()
    assert not idle.done()
    await collect(session)
    async with asyncio.timeout(link.TIMEOUT):
        await idle


async def test_a_fault_in_the_agent_is_the_session_s_only(kubelet: link.Kubelet, agent: Agent) -> None:
    """It ends with the agent's words, and the next one works."""
    ended = (await collect(await kubelet.server.open(UID, command("broken"))))[2]
    assert (ended.reason, ended.exit_code) == ("InternalError", None)
    assert "no idea" in ended.error
    assert (await collect(await kubelet.server.open(UID, COMMAND)))[2].exit_code == 0


async def test_an_agent_cannot_take_another_pod_s_session(kubelet: link.Kubelet, agent: Agent) -> None:
    """A call under another certificate is refused, even with the session's name."""
    answer: asyncio.Future[kubelet_end.KubeletSession] = asyncio.get_running_loop().create_future()
    kubelet.server._opener._waiting["name"] = (UID, answer)
    kubelet.server._opener._counts[UID] = 1
    thief = Agent()
    other = kubelet.dial("pod-2", serve=thief.serve)
    await kubelet.until(("connected", "pod-2"))
    refused = asyncio.Event()
    real = agent_end.Sessions._run

    async def run(self: agent_end.Sessions, dial: Callable[[], Any], wish: link_pb2.Open) -> None:
        await real(self, dial, link_pb2.Open(session="name", exec=wish.exec))
        refused.set()

    other._sessions._run = run.__get__(other._sessions)  # type: ignore[method-assign]
    asking = asyncio.create_task(kubelet.server.open("pod-2", command("deaf")))
    async with asyncio.timeout(link.TIMEOUT):
        await refused.wait()
    assert not answer.done()
    await background.end(asking)
    answer.cancel()
