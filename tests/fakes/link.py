"""A kubelet's and agents' ends of the link over loopback, with real certificates."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import time
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from hpk import jobdir
from hpk.link import client, server, sessions, wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from hpk.link import agent_end

TIMEOUT = 60.0


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


async def serve_nothing(_request: sessions.Request, _client: agent_end.AgentSession) -> sessions.Ended:
    """Refuse every session, as an agent's handler."""
    return sessions.Ended(error="this agent serves no sessions", reason="NotSupported")


class Kubelet:
    """The other end, and what it heard."""

    def __init__(self, directory: Path) -> None:
        self.endpoint = directory / "endpoint.json"
        self.heard: list[tuple[str, Any]] = []
        self.news = asyncio.Event()
        self.terminations: asyncio.Queue[client.Terminate] = asyncio.Queue()
        self.starts: asyncio.Queue[Any] = asyncio.Queue()
        self.renewals: asyncio.Queue[Any] = asyncio.Queue()
        self.server: server.LinkServer
        self.clock: Callable[[], float] = time.time
        self.agents_clock: Callable[[], float] = time.time
        self._clients: list[client.LinkClient] = []

    async def listen(self) -> None:
        """Start a server and write down where it is."""
        certificate, key = authority().issue(wire.SERVER_NAME)
        self.server = server.LinkServer(
            ca=authority().pem,
            certificate=certificate,
            key=key,
            host="127.0.0.1",
            on_report=self._on_report,
            on_connected=functools.partial(self._hear, "connected"),
            on_disconnected=functools.partial(self._hear, "disconnected"),
            clock=self._now,
        )
        port = await self.server.start()
        jobdir.write_json(str(self.endpoint), {"host": "127.0.0.1", "port": port})

    def dial(
        self,
        uid: str,
        *,
        certificate_of: str | None = None,
        trust: Authority | None = None,
        serve: Callable[[sessions.Request, agent_end.AgentSession], Awaitable[sessions.Ended]] = serve_nothing,
        on_clock: Callable[[float], bool] = lambda _: False,
    ) -> client.LinkClient:
        """An agent."""
        certificate, key = (trust or authority()).issue(certificate_of or uid)
        agent = client.Agent(
            uid=uid,
            job_id="7",
            version="0",
            ca=authority().pem,
            certificate=certificate,
            key=key,
            endpoint_file=str(self.endpoint),
        )
        handlers = client.Handlers(
            terminate=self.terminations.put_nowait,
            serve=serve,
            start=self.starts.put_nowait,
            renew=self.renewals.put_nowait,
            set_clock=on_clock,
        )
        made = client.LinkClient(agent, handlers, clock=self.agents_clock)
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

    def _now(self) -> float:
        return self.clock()  # a test may set it while we listen

    async def _on_report(self, uid: str, report: Any) -> None:
        await self._hear(uid, report)

    async def _hear(self, what: str, value: Any) -> None:
        self.heard.append((what, value))
        self.news.set()
