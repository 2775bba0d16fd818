"""Certificate authorities and the certificates they issue: EC P-256, X.509, PEM bytes and 0600 files.

An authority lives in a directory (``ca.crt``, ``ca.key``) and outlives the program; its certificates are issued
anew at each start, for the current host.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import oid

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

AUTHORITY_DAYS = 3650
"""Longer than any control plane is kept in use; ten years, as kubeadm's."""
CERTIFICATE_DAYS = 365
"""Longer than most Slurm jobs; a control plane that lives longer restarts before (hpk.controlplane.renewal)."""
BACKDATED = dt.timedelta(hours=1)
"""Certificates are valid from this long before their creation, since compute nodes' clocks differ."""
RENEWAL = dt.timedelta(days=30)
"""An authority with less time left is rejected: its certificates would expire with it."""


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, as PEM; the repr does not contain the key, so that no log does."""

    certificate_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        subject = x509.load_pem_x509_certificate(self.certificate_pem).subject.rfc4514_string()
        return f"Certificate({subject!r})"

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write ``<name>.crt`` and ``<name>.key`` (0600) and return their paths."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        jobdir.write_bytes(str(key), self.key_pem, is_durable=False)  # made anew at each start
        jobdir.write_bytes(str(certificate), self.certificate_pem, is_durable=False)
        return certificate, key


class Authority:
    """A certificate authority that issues certificates directly (path length 0)."""

    def __init__(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Load an authority from PEM.

        Raises:
            ValueError: Not PEM, or the key is not the certificate's.
        """
        self.certificate_pem = certificate_pem
        self.key_pem = key_pem
        self._certificate = x509.load_pem_x509_certificate(certificate_pem)
        self._key = _load_key(key_pem)
        if self._certificate.public_key() != self._key.public_key():
            raise ValueError("the key does not belong to the certificate")

    @classmethod
    def create(cls, name: str) -> Authority:
        """Return a new authority that exists only in memory."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = (
            _builder(subject=subject, issuer=subject, key=key.public_key(), days=AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(is_authority=True), critical=True)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        )
        return cls(_pem(builder.sign(key, hashes.SHA256())), _key_pem(key))

    @classmethod
    def open(cls, directory: Path, name: str) -> Authority:
        """Return the authority in the directory; create it if missing, only once even if two processes try.

        Raises:
            errors.Fatal: The files are damaged, not a pair, of another authority, or about to expire.
        """

        def create(into: Path) -> None:
            authority = cls.create(name)
            jobdir.write_bytes(str(into / "ca.key"), authority.key_pem)
            jobdir.write_bytes(str(into / "ca.crt"), authority.certificate_pem)

        _create_once(directory, create)
        try:
            authority = cls((directory / "ca.crt").read_bytes(), (directory / "ca.key").read_bytes())
        except (OSError, ValueError) as error:
            raise errors.Fatal(f"Cannot use the authority in {directory}: {error}; {_REMEDY}") from error
        authority._check(directory, name)
        return authority

    @property
    def ends_at(self) -> dt.datetime:
        """When it expires, and with it every certificate it has issued."""
        return self._certificate.not_valid_after_utc

    def issue(
        self,
        common_name: str,
        *,
        organizations: Iterable[str] = (),
        dns_names: Iterable[str] = (),
        addresses: Iterable[str] = (),
        is_server: bool = False,
        is_client: bool = False,
        days: float = CERTIFICATE_DAYS,
    ) -> Certificate:
        """Issue a certificate with a new key.

        `common_name` and `organizations` are a client's user name and groups in Kubernetes; `dns_names` and `addresses`
        are a server's. `is_server` or `is_client` must be true. The certificate ends at the latest with the authority.

        Raises:
            ValueError: An address is invalid, a name is too long, or it is for neither a server nor a client.
        """
        if not (is_server or is_client):
            raise ValueError(f"certificate of {common_name}: neither for a server nor for a client")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(
            subject=_name(common_name, organizations),
            issuer=self._certificate.subject,
            key=key.public_key(),
            days=days,
            until=self._certificate.not_valid_after_utc,
        )
        usages = [
            *([oid.ExtendedKeyUsageOID.SERVER_AUTH] if is_server else []),
            *([oid.ExtendedKeyUsageOID.CLIENT_AUTH] if is_client else []),
        ]
        builder = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names := _alternatives(dns_names, addresses):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Certificate(_pem(builder.sign(self._key, hashes.SHA256())), _key_pem(key))

    def _check(self, directory: Path, name: str) -> None:
        if self._certificate.subject != _name(name):
            found = self._certificate.subject.rfc4514_string()
            raise errors.Fatal(f"Cannot use the authority in {directory}: it is '{found}', not '{name}'; {_REMEDY}")
        if self._certificate.not_valid_after_utc - _now() < RENEWAL:
            end = f"{self._certificate.not_valid_after_utc:%Y-%m-%d}"
            raise errors.Fatal(f"Cannot use the authority in {directory}: it expires on {end}; {_REMEDY}")
        try:
            self._certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, InvalidSignature) as error:
            raise errors.Fatal(f"Cannot use the authority in {directory}: its signature is wrong; {_REMEDY}") from error


_REMEDY = "move the directory away to get a new one (kubeconfigs and tokens made with the old one end with it)"


def signing_key(directory: Path) -> tuple[Path, Path]:
    """Return the key pair that signs service accounts' tokens, created if missing: (private, public) files.

    Raises:
        errors.Fatal: The files are damaged.
    """

    def create(into: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        jobdir.write_bytes(str(into / "key"), _key_pem(key))
        jobdir.write_bytes(str(into / "pub"), public)

    _create_once(directory, create)
    private, public = directory / "key", directory / "pub"
    try:
        pair = _load_key(private.read_bytes()).public_key()
        matches = serialization.load_pem_public_key(public.read_bytes()) == pair
    except (OSError, ValueError) as error:
        raise errors.Fatal(f"Cannot use the signing key in {directory}: {error}; {_REMEDY}") from error
    if not matches:
        raise errors.Fatal(f"Cannot use the signing key in {directory}: its two files are not a pair; {_REMEDY}")
    return private, public


def _create_once(directory: Path, create: Callable[[Path], None]) -> None:
    """Fill a directory completely or not at all, and once: a rename onto a filled directory fails, on NFS too."""
    if directory.exists():
        return
    jobdir.make_directory(str(directory.parent))
    temporary = directory.with_name(f"{directory.name}.{os.urandom(4).hex()}.tmp")
    temporary.mkdir(mode=0o700)
    try:
        create(temporary)
        # Its files are durable: after a power cut the authority is complete or absent. An empty key cannot be repaired.
        temporary.rename(directory)
        jobdir.sync_directory(str(directory.parent))
    except OSError:
        if not directory.exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: float,
    until: dt.datetime | None = None,
) -> x509.CertificateBuilder:
    end = _now() + dt.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - BACKDATED)
        .not_valid_after(min(end, until) if until else end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str, organizations: Iterable[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(oid.NameOID.ORGANIZATION_NAME, group) for group in organizations]
    return x509.Name([*parts, x509.NameAttribute(oid.NameOID.COMMON_NAME, common_name)])


def _alternatives(dns_names: Iterable[str], addresses: Iterable[str]) -> list[x509.GeneralName]:
    # dict.fromkeys: a repeated name (a host called localhost) is one entry, in order.
    return [
        *(x509.DNSName(name) for name in dict.fromkeys(dns_names)),
        *(x509.IPAddress(ipaddress.ip_address(address)) for address in dict.fromkeys(addresses)),
    ]


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not an elliptic curve key")  # noqa: TRY004 - of the file, not of the caller
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)
