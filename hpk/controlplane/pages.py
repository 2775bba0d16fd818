"""Patches between two states of a database file: the changed pages, applicable repeatedly.

bbolt writes its file in pages and leaves unchanged ones alone, so a database differs from a recent copy in few of them.
A patch is ``size of the file | (offset | length | bytes)*``, big-endian. It holds whole pages, so applying it again, or
after a partial application, gives the same result.
"""

from __future__ import annotations

import hashlib
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE_BYTES = 4096
_DIGEST_BYTES = 16
_CHUNK_PAGES = 256
_SIZE = struct.Struct(">Q")
_RECORD = struct.Struct(">QI")


def prints(path: Path) -> bytes:
    """Return the concatenated digests of the file's pages: a large database has half a million."""
    found = bytearray()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_PAGES * PAGE_BYTES):
            for start in range(0, len(chunk), PAGE_BYTES):
                page = chunk[start : start + PAGE_BYTES]
                found += hashlib.blake2b(page, digest_size=_DIGEST_BYTES).digest()
    return bytes(found)


def count(prints: bytes) -> int:
    """Return the number of pages of these digests."""
    return len(prints) // _DIGEST_BYTES


def changed(old: bytes, new: bytes) -> list[int]:
    """Return the numbers of the pages that differ, in order."""
    places = range(0, len(new), _DIGEST_BYTES)
    return [
        start // _DIGEST_BYTES
        for start in places
        if old[start : start + _DIGEST_BYTES] != new[start : start + _DIGEST_BYTES]
    ]


def write(source: Path, numbers: list[int], target: Path) -> None:
    """Write and sync a patch with these pages of the source.

    Raises:
        OSError: The file system failed; the target is not a valid patch.
    """
    with source.open("rb") as file, target.open("wb") as patch:
        target.chmod(0o600)
        patch.write(_SIZE.pack(os.fstat(file.fileno()).st_size))
        for first, count in _runs(numbers):
            file.seek(first * PAGE_BYTES)
            content = file.read(count * PAGE_BYTES)
            patch.write(_RECORD.pack(first * PAGE_BYTES, len(content)) + content)
        patch.flush()
        os.fsync(patch.fileno())


def apply(patch: Path, target: Path) -> None:
    """Apply a patch and sync the target.

    Raises:
        OSError: The file system failed; apply it again before the target is used.
    """
    with patch.open("rb") as file, target.open("r+b") as database:
        (size,) = _SIZE.unpack(file.read(_SIZE.size))
        while head := file.read(_RECORD.size):
            offset, length = _RECORD.unpack(head)
            database.seek(offset)
            database.write(file.read(length))
        database.truncate(size)
        database.flush()
        os.fsync(database.fileno())


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of page numbers as (first, count), none longer than a chunk."""
    first, count = -1, 0
    for number in numbers:
        if count and number == first + count and count < _CHUNK_PAGES:
            count += 1
            continue
        if count:
            yield first, count
        first, count = number, 1
    if count:
        yield first, count
