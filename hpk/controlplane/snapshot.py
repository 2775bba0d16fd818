"""A consistent copy of a running etcd's database."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING

from hpk import errors
from hpk.controlplane import etcd_client

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from hpk.controlplane.layout import Layout

_HASH_BYTES = 32


async def save(layout: Layout, path: Path) -> None:
    """Write etcd's database to the path, and verify its checksum.

    Raises:
        errors.Retryable: etcd does not answer, or the stream broke.
        OSError: There is no space.
    """
    async with etcd_client.connected(layout) as client:
        with _create(path) as file:
            async for part in client.snapshot():
                await asyncio.to_thread(file.write, part)
    await asyncio.to_thread(_check, path)


def _create(path: Path) -> BinaryIO:
    path.touch(mode=0o600)
    return path.open("wb")


def _check(path: Path) -> None:
    """Cut off the checksum at the file's end, and compare it with the rest."""
    size = path.stat().st_size - _HASH_BYTES
    digest = hashlib.sha256()
    with path.open("r+b") as file:
        left = size
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            digest.update(data)
            left -= len(data)
        if size <= 0 or file.read() != digest.digest():
            raise errors.Retryable("Cannot copy etcd's database: its checksum is wrong")
        file.truncate(size)
