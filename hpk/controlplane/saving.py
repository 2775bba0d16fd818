"""A consistent copy of a running etcd's database, by its maintenance API (gRPC)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from hpk import errors
from hpk.controlplane import etcd, wal

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from hpk.controlplane.layout import Layout

_METHOD = "/etcdserverpb.Maintenance/Snapshot"
_BLOB = 3
"""The field of SnapshotResponse that holds a piece of the file; what is not there has a default value."""
_HASH_BYTES = 32
_SECONDS = 60.0


async def save(layout: Layout, path: Path) -> None:
    """Write etcd's database to the path, all of it or nothing that its checksum lets pass.

    Raises:
        errors.Retryable: etcd does not answer, or broke off.
        OSError: There is no room here.
    """
    import grpc  # noqa: PLC0415 - 0.1 s, and etcd must be started before
    import grpc.aio  # noqa: PLC0415

    def read(file: Path) -> bytes:
        return file.read_bytes()

    credentials = grpc.ssl_channel_credentials(
        root_certificates=read(layout.authority_certificate("etcd")),
        private_key=read(layout.key(etcd.CLIENT)),
        certificate_chain=read(layout.certificate(etcd.CLIENT)),
    )
    options = [("grpc.enable_http_proxy", 0)]
    target = layout.etcd_url.removeprefix("https://")
    try:
        async with asyncio.timeout(_SECONDS), grpc.aio.secure_channel(target, credentials, options=options) as channel:
            call = channel.unary_stream(_METHOD)(b"")
            with _create(path) as file:
                async for message in call:
                    file.write(wal.field(message, _BLOB))
    except (grpc.aio.AioRpcError, TimeoutError) as error:
        why = error.details() if isinstance(error, grpc.aio.AioRpcError) else f"no answer within {_SECONDS:.0f} s"
        raise errors.Retryable(f"etcd does not hand out its database: {why}") from error
    await asyncio.to_thread(_check, path)


def _create(path: Path) -> BinaryIO:
    path.touch(mode=0o600)
    return path.open("wb")


def _check(path: Path) -> None:
    """Cut the checksum off that ends the file, and hold it against the rest."""
    size = path.stat().st_size - _HASH_BYTES
    digest = hashlib.sha256()
    with path.open("r+b") as file:
        left = size
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
        if size <= 0 or file.read() != digest.digest():
            raise errors.Retryable("etcd handed out a database that is not whole")
        file.truncate(size)
