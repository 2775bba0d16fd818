"""Agent and kubelet over loopback, with real certificates."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from hpk import errors, jobdir
from hpk.link import client, kubelet_end, link_pb2, link_pb2_grpc
from tests import virtual
from tests.fakes import link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[link.Kubelet]:
    """A kubelet that listens."""
    made = link.Kubelet(tmp_path)
    await made.listen()
    yield made
    await made.close()


def report(sequence: int) -> bytes:
    """A report's bytes."""
    return json.dumps({"sequence": sequence}).encode()


async def test_a_report_reaches_the_kubelet_and_is_acknowledged(kubelet: link.Kubelet) -> None:
    """What the agent publishes arrives whole, under the pod's UID, and the agent learns that it did."""
    agent = kubelet.dial("pod-1")
    agent.publish(3, report(3))
    await kubelet.until(("connected", "pod-1"), ("pod-1", {"sequence": 3}))
    async with asyncio.timeout(link.TIMEOUT):
        await agent.acknowledged(3)


async def test_only_the_newest_report_counts(kubelet: link.Kubelet) -> None:
    """Reports that were overtaken before they could be sent are not sent."""
    agent = kubelet.dial("pod-1")
    for sequence in range(1, 100):
        agent.publish(sequence, report(sequence))
    await kubelet.until(("pod-1", {"sequence": 99}))
    assert len([item for item in kubelet.heard if item[0] == "pod-1"]) < 5


async def test_the_kubelet_can_end_a_pod(kubelet: link.Kubelet) -> None:
    """A wish reaches the agent with its grace and reason; nobody on the line is said so."""
    assert not kubelet.server.terminate("pod-1", grace_seconds=5)
    kubelet.dial("pod-1")
    await kubelet.until(("connected", "pod-1"))
    assert kubelet.server.terminate("pod-1", grace_seconds=5.5, reason="Deleted", message="bye")
    async with asyncio.timeout(link.TIMEOUT):
        wish = await kubelet.terminations.get()
    assert wish == client.Terminate(grace_seconds=5.5, reason="Deleted", message="bye")


async def test_a_report_with_bytes_that_are_no_text_is_heard(kubelet: link.Kubelet) -> None:
    """As an older agent may send it: else it would dial, be dropped, and dial again for ever."""
    agent = kubelet.dial("pod-1")
    agent.publish(1, b'{"sequence": 1, "why": "caf\xe9"}')
    await kubelet.until(("pod-1", {"sequence": 1, "why": "caf\ufffd"}))


async def test_an_agent_follows_the_kubelet_to_another_port(kubelet: link.Kubelet) -> None:
    """When the kubelet has moved, the agent reads the endpoint again and brings its newest report."""
    agent = kubelet.dial("pod-1")
    agent.publish(1, report(1))
    await kubelet.until(("pod-1", {"sequence": 1}))
    await kubelet.server.stop(grace_seconds=0.1)
    await kubelet.until(("disconnected", "pod-1"))
    kubelet.heard.clear()
    await kubelet.listen()
    await kubelet.until(("connected", "pod-1"), ("pod-1", {"sequence": 1}))


async def test_an_agent_dials_although_there_is_no_kubelet_yet(tmp_path: Path) -> None:
    """An agent that starts before the kubelet reaches it later."""
    late = link.Kubelet(tmp_path)
    agent = late.dial("pod-1")
    agent.publish(1, report(1))
    await asyncio.sleep(0)
    await late.listen()
    await late.until(("pod-1", {"sequence": 1}))
    await late.close()


async def test_a_home_that_hangs_holds_up_the_link_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dials looks for the kubelet's address there; probes and signals go on."""
    asked, answers = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hanging(_path: str) -> None:
        loop.call_soon_threadsafe(asked.set)
        assert answers.wait(link.TIMEOUT)

    monkeypatch.setattr(jobdir, "read_json", hanging)
    agent = link.Kubelet(tmp_path).dial("pod-1")
    async with asyncio.timeout(link.TIMEOUT / 2):
        await asked.wait()
    answers.set()
    await agent.close()


async def test_a_pod_cannot_speak_for_another(kubelet: link.Kubelet) -> None:
    """An agent whose certificate is of another pod is not listened to."""
    liar = kubelet.dial("pod-1", certificate_of="pod-2")
    liar.publish(1, report(1))
    honest = kubelet.dial("pod-3")
    honest.publish(1, report(1))
    await kubelet.until(("pod-3", {"sequence": 1}))
    assert "pod-1" not in kubelet.server.connected
    assert not [item for item in kubelet.heard if item[0] == "pod-1"]


async def test_a_stranger_cannot_connect(kubelet: link.Kubelet) -> None:
    """A certificate of another authority opens nothing."""
    kubelet.dial("pod-1", trust=link.Authority())
    honest = kubelet.dial("pod-3")
    honest.publish(1, report(1))
    await kubelet.until(("pod-3", {"sequence": 1}))
    assert kubelet.server.connected == {"pod-3"}


async def test_a_new_stream_of_a_pod_replaces_the_old(kubelet: link.Kubelet) -> None:
    """An agent that dials anew before its old stream is known dead is the one that is told things."""
    first = kubelet.dial("pod-1")
    first.publish(1, report(1))
    await kubelet.until(("pod-1", {"sequence": 1}))
    second = kubelet.dial("pod-1")
    second.publish(2, report(2))
    await kubelet.until(("pod-1", {"sequence": 2}))
    await first.close()
    assert kubelet.server.terminate("pod-1", grace_seconds=1)
    async with asyncio.timeout(link.TIMEOUT):
        await kubelet.terminations.get()
    assert ("disconnected", "pod-1") not in kubelet.heard


async def test_an_agent_that_does_not_read_loses_its_stream(
    kubelet: link.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the stream would stay open, and nobody would take its reports."""
    monkeypatch.setattr(kubelet_end, "MOST_MESSAGES", 4)
    volumes: Any = [{"name": "v" * 100_000}]
    certificate, key = link.authority().issue("pod-1")
    credentials = grpc.ssl_channel_credentials(link.authority().pem, key, certificate)
    target = f"127.0.0.1:{json.loads(kubelet.endpoint.read_text())['port']}"
    hello = link_pb2.Hello(protocol=client.PROTOCOL, uid="pod-1", job_id="7")
    async with (
        asyncio.timeout(link.TIMEOUT),
        grpc.aio.secure_channel(target, credentials, options=client.OPTIONS) as channel,
    ):
        call = link_pb2_grpc.LinkStub(channel).Attach()
        await call.write(link_pb2.AgentMessage(hello=hello))
        await kubelet.until(("connected", "pod-1"))
        misses = 0
        while misses < 10:
            misses = 0 if kubelet.server.renew("pod-1", volumes) else misses + 1
            await asyncio.sleep(0.01)
        await call.write(link_pb2.AgentMessage(report=link_pb2.Report(sequence=1, json=report(1))))
        await kubelet.until(("pod-1", {"sequence": 1}))
        while await call.read() is not grpc.aio.EOF:
            pass
    await kubelet.until(("disconnected", "pod-1"))


async def test_a_container_s_plan_reaches_the_agent_byte_for_byte(kubelet: link.Kubelet) -> None:
    """What is not UTF-8 in its environment too; nobody on the line is said so."""
    plan: Any = {
        "name": "d",
        "kind": "ephemeral",
        "env": [["K", b"\xff\xfe".decode("utf-8", "surrogateescape")], ["U", "\u65e5"]],
    }
    with pytest.raises(errors.AgentUnavailable, match="not connected now"):
        kubelet.server.start_container("pod-1", plan)
    kubelet.dial("pod-1")
    await kubelet.until(("connected", "pod-1"))
    kubelet.server.start_container("pod-1", plan)
    async with asyncio.timeout(link.TIMEOUT):
        assert await kubelet.starts.get() == plan


async def test_an_agent_of_an_older_protocol_is_sent_no_container(
    kubelet: link.Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would pass the message over in silence."""
    monkeypatch.setattr(client, "PROTOCOL", 2)
    kubelet.dial("pod-1")
    await kubelet.until(("connected", "pod-1"))
    plan: Any = {"name": "d", "kind": "ephemeral"}
    with pytest.raises(errors.AgentUnavailable, match="from before ephemeral containers; recreate the pod"):
        kubelet.server.start_container("pod-1", plan)
    monkeypatch.setattr(client, "PROTOCOL", 4)
    kubelet.dial("pod-2")
    await kubelet.until(("connected", "pod-2"))
    kubelet.server.start_container("pod-2", plan)
    with pytest.raises(errors.AgentUnavailable, match="from before changes of running pods' images; recreate the pod"):
        kubelet.server.start_container("pod-2", plan | {"kind": "app"})


async def test_renewed_files_reach_the_agent(kubelet: link.Kubelet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole volumes, as the plan has them; one that is away or too old is told of."""
    volumes: Any = [{"name": "v", "kind": "files", "files": [{"path": "token", "mode": 0o600, "data": "bmV3"}]}]
    assert not kubelet.server.renew("pod-1", volumes)
    kubelet.dial("pod-1")
    await kubelet.until(("connected", "pod-1"))
    assert kubelet.server.renew("pod-1", volumes)
    async with asyncio.timeout(link.TIMEOUT):
        assert await kubelet.renewals.get() == volumes
    monkeypatch.setattr(client, "PROTOCOL", 3)
    kubelet.dial("pod-2")
    await kubelet.until(("connected", "pod-2"))
    assert not kubelet.server.renew("pod-2", volumes)


@pytest.mark.parametrize(("skew", "told"), [(-120.0, 120.0), (120.0, -120.0), (0.5, 0.0)])
async def test_an_agent_learns_how_far_its_clock_is_off(kubelet: link.Kubelet, skew: float, told: float) -> None:
    """The welcome says what time it is for the kubelet; what may be the way is no difference."""
    kubelet.clock, kubelet.agents_clock = lambda: virtual.EPOCH + skew, lambda: virtual.EPOCH
    heard: asyncio.Queue[float] = asyncio.Queue()

    def hear(ahead_seconds: float) -> bool:
        heard.put_nowait(ahead_seconds)
        return False

    kubelet.dial("pod-1", on_clock=hear)
    async with asyncio.timeout(link.TIMEOUT):
        assert await heard.get() == told


async def test_a_report_of_before_the_welcome_waits_for_the_one_that_knows_the_time(kubelet: link.Kubelet) -> None:
    """The kubelet is not told times that change a moment later."""
    kubelet.clock = lambda: time.time() - 120

    def hear(_: float) -> bool:
        agent.publish(2, report(2))
        return False

    agent = kubelet.dial("pod-1", on_clock=hear)
    agent.publish(1, report(1))
    await kubelet.until(("pod-1", {"sequence": 2}))
    assert ("pod-1", {"sequence": 1}) not in kubelet.heard


async def test_a_report_that_is_about_to_be_replaced_is_not_sent(kubelet: link.Kubelet) -> None:
    """Also where the one that knows the time takes a while to come."""
    heard = asyncio.Event()

    def hear(_: float) -> bool:
        heard.set()
        return True

    agent = kubelet.dial("pod-1", on_clock=hear)
    agent.publish(1, report(1))
    async with asyncio.timeout(link.TIMEOUT):
        await heard.wait()
    agent.publish(2, report(2))
    await kubelet.until(("pod-1", {"sequence": 2}))
    assert ("pod-1", {"sequence": 1}) not in kubelet.heard


@pytest.mark.parametrize(
    ("now", "ahead"),
    [(100.0, 0.0), (109.0, 0.0), (95.0, 15.0), (99.0, 0.0), (200.0, -90.0), (110.5, 0.0)],
)
def test_only_a_certain_difference_counts(now: float, ahead: float) -> None:
    """Read between two looks at ours, 100 and 110: what may have been the way is nobody's fault."""
    assert client.ahead_seconds(now, asked_at=100.0, heard_at=110.0) == ahead
