"""The kubelet's API on loopback, with all that it asks, and clients with certificates."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hpk import jobdir
from hpk.node import auth, server
from tests.fakes import kube, sessions
from tests.fakes import pods as fakes

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate as PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key as PEM."""
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def issue(name: str, *groups: str, issuer: Pair | None = None) -> Pair:
    """A certificate of this CN and these Os; of its own authority without an issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(tz=dt.UTC)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    if issuer is not None:
        builder = builder.add_extension(usages, critical=False)
    return Pair(builder.sign((issuer.key if issuer else key), hashes.SHA256()), key)


class Reviews:
    """Refuses pods that are called bad, warns of others, and breaks on those that are called ugly."""

    def review(
        self, kind: str, raw: dict[str, Any], *, old: dict[str, Any] | None = None, part: str = ""
    ) -> tuple[str | None, list[str]]:
        """As :class:`hpk.node.webhook.AdmissionReviewer`."""
        if old is not None:
            return f"no such change of {part or 'it'}", []
        if raw["metadata"]["name"] == "ugly":
            raise RuntimeError(kind)
        return ("no such thing", []) if raw["metadata"]["name"] == "bad" else (None, [f"a {kind}"])


class World:
    """A server, the API server that it asks, its pods, and clients."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pods = fakes.FakePods()
        self.state = jobdir.StateDirectory(str(root / "state"))
        self.ca = issue("ca")
        self.kube = kube.FakeKube()
        self.kube.reactions[auth.ACCESS_REVIEWS] = lambda body: {
            "status": {"allowed": body["spec"]["user"] in ("apiserver", "sa")}
        }
        self.kube.reactions[auth.TOKEN_REVIEWS] = lambda body: {
            "status": {"authenticated": body["spec"]["token"] == "good", "user": {"username": "sa"}}
        }
        serving = issue("hpk", issuer=self.ca)
        self.reviews = Reviews()
        self.opener = sessions.FakeOpener()
        self.server = server.KubeletServer(
            self.pods,
            state=self.state,
            authenticator=auth.Authenticator(self.kube),
            authorizer=auth.Authorizer(self.kube, "hpk"),
            opener=self.opener,
            context=server.tls(certificate_pem=serving.pem, key_pem=serving.key_pem, client_ca_pem=self.ca.pem),
            host="127.0.0.1",
            port=0,
            configuration={"port": 10250},
            reviews=self.reviews,
        )
        self.apiserver_pair = issue("apiserver", "system:masters", issuer=self.ca)
        self.apiserver_tls = self.trust()
        file = root / "apiserver.pem"
        file.write_bytes(self.apiserver_pair.pem + self.apiserver_pair.key_pem)
        self.apiserver_tls.load_cert_chain(file)
        self.sessions: list[aiohttp.ClientSession] = []
        self.writers: list[asyncio.StreamWriter] = []
        """Of clients that speak byte by byte."""

    async def close(self) -> None:
        """Hang up all clients."""
        for session in self.sessions:
            await session.close()
        for writer in self.writers:
            writer.transport.abort()

    def trust(self) -> ssl.SSLContext:
        """TLS that trusts the cluster's authority."""
        context = ssl.create_default_context(cadata=self.ca.pem.decode())
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # our quick certificates lack key identifiers
        return context

    def client(self, pair: Pair | None, **headers: str) -> aiohttp.ClientSession:
        """A client with this certificate, or none."""
        context = self.trust()
        if pair is not None:
            file = self.root / f"client{len(self.sessions)}.pem"
            file.write_bytes(pair.pem + pair.key_pem)
            context.load_cert_chain(file)
        session = aiohttp.ClientSession(
            f"https://127.0.0.1:{self.server.port}",
            connector=aiohttp.TCPConnector(ssl=context),
            headers=headers,
        )
        self.sessions.append(session)
        return session

    def apiserver(self) -> aiohttp.ClientSession:
        """A client that may do everything."""
        return self.client(self.apiserver_pair)

    def log(self, uid: str = "u1", count: int = 0, container: str = "c") -> Path:
        """The path of a log whose directory exists."""
        path = self.root / "state" / "pods" / uid / "logs" / container / f"{count}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        assert str(path) == self.state.pod(uid).log(container, count)
        return path
