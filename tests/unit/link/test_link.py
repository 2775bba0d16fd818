"""Agent and kubelet over loopback, with real certificates."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import json
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hpk import jobdir
from hpk.link import client, server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TIMEOUT = 5.0


class Authority:
    """A throw-away certificate authority."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("authority", self.key, issuer=None, name="")

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str) -> tuple[bytes, bytes]:
        """A certificate and its key, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key, issuer=self.certificate.subject, name=name)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private

    def _sign(
        self, common: str, key: ec.EllipticCurvePrivateKey, *, issuer: x509.Name | None, name: str
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(minutes=1))
            .not_valid_after(now + dt.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        )
        if name:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(self.key, hashes.SHA256())


@functools.cache
def authority() -> Authority:
    """One for all tests: keys take time."""
    return Authority()


class Kubelet:
    """The other end, and what it heard."""

    def __init__(self, directory: Path) -> None:
        self.endpoint = directory / "endpoint.json"
        self.heard: list[tuple[str, Any]] = []
        self.news = asyncio.Event()
        self.wishes: asyncio.Queue[client.Terminate] = asyncio.Queue()
        self.server: server.LinkServer
        self._clients: list[client.LinkClient] = []

    async def listen(self) -> None:
        """Start a server and write down where it is."""
        certificate, key = authority().issue(client.SERVER_NAME)
        self.server = server.LinkServer(
            ca=authority().pem,
            certificate=certificate,
            key=key,
            host="127.0.0.1",
            on_report=self._on_report,
            on_connected=functools.partial(self._hear, "connected"),
            on_disconnected=functools.partial(self._hear, "disconnected"),
        )
        port = await self.server.start()
        jobdir.write_json(str(self.endpoint), {"host": "127.0.0.1", "port": port})

    def dial(self, uid: str, *, certificate_of: str | None = None, trust: Authority | None = None) -> client.LinkClient:
        """An agent."""
        certificate, key = (trust or authority()).issue(certificate_of or uid)
        made = client.LinkClient(
            uid=uid,
            job_id="7",
            version="0",
            endpoint_file=str(self.endpoint),
            ca=authority().pem,
            certificate=certificate,
            key=key,
            on_terminate=self.wishes.put_nowait,
        )
        made.start()
        self._clients.append(made)
        return made

    async def until(self, *expected: tuple[str, Any]) -> None:
        """Wait until all of these were heard."""
        async with asyncio.timeout(TIMEOUT):
            while not all(item in self.heard for item in expected):
                self.news.clear()
                await self.news.wait()

    async def close(self) -> None:
        """Stop everything."""
        for one in self._clients:
            await one.close()
        await self.server.stop(grace_seconds=0.1)

    async def _on_report(self, uid: str, report: Any) -> None:
        await self._hear(uid, report)

    async def _hear(self, what: str, value: Any) -> None:
        self.heard.append((what, value))
        self.news.set()


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """A kubelet that listens."""
    made = Kubelet(tmp_path)
    await made.listen()
    yield made
    await made.close()


def report(sequence: int) -> bytes:
    """A report's bytes."""
    return json.dumps({"sequence": sequence}).encode()


async def test_a_report_reaches_the_kubelet_and_is_acknowledged(kubelet: Kubelet) -> None:
    """What the agent publishes arrives whole, under the pod's UID, and the agent learns that it did."""
    agent = kubelet.dial("pod-1")
    agent.publish(3, report(3))
    await kubelet.until(("connected", "pod-1"), ("pod-1", {"sequence": 3}))
    async with asyncio.timeout(TIMEOUT):
        await agent.acknowledged(3)


async def test_only_the_newest_report_counts(kubelet: Kubelet) -> None:
    """Reports that were overtaken before they could be sent are not sent."""
    agent = kubelet.dial("pod-1")
    for sequence in range(1, 100):
        agent.publish(sequence, report(sequence))
    await kubelet.until(("pod-1", {"sequence": 99}))
    assert len([item for item in kubelet.heard if item[0] == "pod-1"]) < 5


async def test_the_kubelet_can_end_a_pod(kubelet: Kubelet) -> None:
    """A wish reaches the agent with its grace and reason; nobody on the line is said so."""
    assert not kubelet.server.terminate("pod-1", grace_seconds=5)
    kubelet.dial("pod-1")
    await kubelet.until(("connected", "pod-1"))
    assert kubelet.server.terminate("pod-1", grace_seconds=5.5, reason="Deleted", message="bye")
    async with asyncio.timeout(TIMEOUT):
        wish = await kubelet.wishes.get()
    assert wish == client.Terminate(grace_seconds=5.5, reason="Deleted", message="bye")


async def test_an_agent_follows_the_kubelet_to_another_port(kubelet: Kubelet) -> None:
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
    late = Kubelet(tmp_path)
    agent = late.dial("pod-1")
    agent.publish(1, report(1))
    await asyncio.sleep(0)
    await late.listen()
    await late.until(("pod-1", {"sequence": 1}))
    await late.close()


async def test_a_pod_cannot_speak_for_another(kubelet: Kubelet) -> None:
    """An agent whose certificate is of another pod is not listened to."""
    liar = kubelet.dial("pod-1", certificate_of="pod-2")
    liar.publish(1, report(1))
    honest = kubelet.dial("pod-3")
    honest.publish(1, report(1))
    await kubelet.until(("pod-3", {"sequence": 1}))
    assert "pod-1" not in kubelet.server.connected
    assert not [item for item in kubelet.heard if item[0] == "pod-1"]


async def test_a_stranger_cannot_connect(kubelet: Kubelet) -> None:
    """A certificate of another authority opens nothing."""
    kubelet.dial("pod-1", trust=Authority())
    honest = kubelet.dial("pod-3")
    honest.publish(1, report(1))
    await kubelet.until(("pod-3", {"sequence": 1}))
    assert kubelet.server.connected == {"pod-3"}


async def test_a_new_stream_of_a_pod_replaces_the_old(kubelet: Kubelet) -> None:
    """An agent that dials anew before its old stream is known dead is the one that is told things."""
    first = kubelet.dial("pod-1")
    first.publish(1, report(1))
    await kubelet.until(("pod-1", {"sequence": 1}))
    second = kubelet.dial("pod-1")
    second.publish(2, report(2))
    await kubelet.until(("pod-1", {"sequence": 2}))
    await first.close()
    assert kubelet.server.terminate("pod-1", grace_seconds=1)
    async with asyncio.timeout(TIMEOUT):
        await kubelet.wishes.get()
    assert ("disconnected", "pod-1") not in kubelet.heard
