"""Authorities and certificates, checked by OpenSSL through ssl as a peer would."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime as dt
import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pytest
from cryptography import x509

from hpk import errors, pki

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def handshake(
    tmp_path: Path,
    *,
    server: pki.Certificate,
    client: pki.Certificate,
    trusted: pki.Authority,
    clients: pki.Authority,
    name: str = "localhost",
) -> str:
    """Do a mutual TLS handshake, strictly checked; the client's common name as the server saw it."""
    server_side, client_side = socket.socketpair()
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.verify_mode = ssl.CERT_REQUIRED
    accepting.load_verify_locations(cadata=clients.certificate_pem.decode())
    accepting.load_cert_chain(*server.write(tmp_path, "server"))
    dialling = ssl.create_default_context(cadata=trusted.certificate_pem.decode())
    dialling.load_cert_chain(*client.write(tmp_path, "client"))
    for context in (accepting, dialling):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    seen: list[str] = []

    def serve() -> None:
        try:
            with accepting.wrap_socket(server_side, server_side=True) as connection:
                subject = dict(pair[0] for pair in connection.getpeercert()["subject"])  # type: ignore[index,misc]
                seen.append(subject["commonName"])
                connection.send(b"x")
        except (ssl.SSLError, OSError):
            server_side.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with (
            dialling.wrap_socket(client_side, server_hostname=name) as connection,
            contextlib.suppress(ssl.SSLError),  # the refusal of the server comes after the handshake
        ):
            connection.recv(1)
    finally:
        client_side.close()
        thread.join()
    return "".join(seen)


@pytest.fixture(name="authority")
def _authority() -> pki.Authority:
    return pki.Authority.create("one")


def test_server_and_client_meet(authority: pki.Authority, tmp_path: Path) -> None:
    """A name and an address of the certificate are accepted, by strict rules, and the client is known by name."""
    server = authority.issue("s", dns_names=["localhost"], addresses=["127.0.0.1"], is_server=True)
    client = authority.issue("alice", organizations=["g"], is_client=True)
    for name in ("localhost", "127.0.0.1"):
        seen = handshake(tmp_path, server=server, client=client, trusted=authority, clients=authority, name=name)
        assert seen == "alice"


def test_another_authority_means_nothing(authority: pki.Authority, tmp_path: Path) -> None:
    """A client of another authority of the same name is refused, and so is a server."""
    other = pki.Authority.create("one")
    server = authority.issue("s", dns_names=["localhost"], is_server=True)
    stranger = other.issue("alice", is_client=True)
    assert handshake(tmp_path, server=server, client=stranger, trusted=authority, clients=authority) == ""
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server=server, client=stranger, trusted=other, clients=other)


def test_usage_is_kept_apart(authority: pki.Authority, tmp_path: Path) -> None:
    """A client's certificate serves nobody, and a server's is no client."""
    server = authority.issue("s", dns_names=["localhost"], is_server=True)
    client = authority.issue("c", dns_names=["localhost"], is_client=True)
    assert handshake(tmp_path, server=server, client=server, trusted=authority, clients=authority) == ""
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server=client, client=client, trusted=authority, clients=authority)
    with pytest.raises(ValueError, match="neither"):
        authority.issue("useless")


def test_a_name_that_is_not_there_is_refused(authority: pki.Authority, tmp_path: Path) -> None:
    """A server is believed only under its own names."""
    server = authority.issue("s", dns_names=["localhost"], is_server=True)
    client = authority.issue("c", is_client=True)
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        handshake(tmp_path, server=server, client=client, trusted=authority, clients=authority, name="elsewhere")


def test_life_times(authority: pki.Authority) -> None:
    """Good from an hour ago, for as long as asked, never beyond the authority; every serial number is new."""
    now = dt.datetime.now(dt.UTC)
    short, default, long = (
        x509.load_pem_x509_certificate(authority.issue("c", is_client=True, days=days).certificate_pem)
        for days in (1, pki.CERTIFICATE_DAYS, 100_000)
    )
    ca = x509.load_pem_x509_certificate(authority.certificate_pem)
    for certificate in (short, default, long, ca):
        assert dt.timedelta(minutes=59) < now - certificate.not_valid_before_utc < dt.timedelta(minutes=61)
    assert dt.timedelta(hours=23) < short.not_valid_after_utc - now < dt.timedelta(hours=25)
    assert long.not_valid_after_utc == ca.not_valid_after_utc
    assert len({certificate.serial_number for certificate in (short, default, long, ca)}) == 4


def test_an_authority_persists(tmp_path: Path) -> None:
    """Opening again gives the same authority; files are 0600 and the directory is 0700."""
    first = pki.Authority.open(tmp_path / "pki" / "a", "a")
    second = pki.Authority.open(tmp_path / "pki" / "a", "a")
    assert first.certificate_pem == second.certificate_pem
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "pki" / "a").iterdir()} == {
        "ca.crt": 0o600,
        "ca.key": 0o600,
    }
    assert (tmp_path / "pki" / "a").stat().st_mode & 0o777 == 0o700
    assert [path.name for path in (tmp_path / "pki").iterdir()] == ["a"]


def test_there_are_never_two_at_once(tmp_path: Path) -> None:
    """Whoever opens at the same time gets the same authority, and the same signing key."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: pki.Authority.open(tmp_path / "a", "a").certificate_pem, range(8)))
        keys = list(pool.map(lambda _: pki.signing_key(tmp_path / "k")[0].read_bytes(), range(8)))
    assert len(set(made)) == len(set(keys)) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"a", "k"}


def test_damage_is_told_with_a_remedy(tmp_path: Path) -> None:
    """A missing half, garbage, a foreign key and another name are each refused, and the text says what to do."""

    def replace(directory: Path, *, certificate: pki.Authority, key: pki.Authority) -> None:
        (directory / "ca.crt").write_bytes(certificate.certificate_pem)
        (directory / "ca.key").write_bytes(key.key_pem)

    namesake, other = pki.Authority.create("a"), pki.Authority.create("b")
    spoilers: list[Callable[[Path], object]] = [
        lambda directory: (directory / "ca.key").unlink(),
        lambda directory: (directory / "ca.crt").write_text("x"),
        lambda directory: replace(directory, certificate=namesake, key=other),
        lambda directory: replace(directory, certificate=other, key=other),
    ]
    for number, spoil in enumerate(spoilers):
        directory = tmp_path / str(number)
        pki.Authority.open(directory, "a")
        spoil(directory)
        with pytest.raises(errors.Fatal, match="move the directory away"):
            pki.Authority.open(directory, "a")


def test_an_old_authority_is_refused_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that ends within a month is refused at a start, not in the middle of a job."""
    monkeypatch.setattr(pki, "AUTHORITY_DAYS", 29)
    with pytest.raises(errors.Fatal, match="expires on"):
        pki.Authority.open(tmp_path / "a", "a")


def test_a_spoiled_signing_key_is_refused(tmp_path: Path) -> None:
    """Two halves that are no pair would sign tokens that nobody accepts."""
    _, public = pki.signing_key(tmp_path / "k")
    public.write_bytes(pki.signing_key(tmp_path / "other")[1].read_bytes())
    with pytest.raises(errors.Fatal, match="not a pair"):
        pki.signing_key(tmp_path / "k")


def test_a_key_never_shows(authority: pki.Authority) -> None:
    """What a log would print of a certificate is its subject."""
    shown = repr(authority.issue("alice", organizations=["hpk:admins"], is_client=True))
    assert "alice" in shown
    assert "KEY" not in shown
