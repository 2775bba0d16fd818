"""Writes a log as etcd does (server/storage/wal/encoder.go)."""

from __future__ import annotations

from typing import Self

from hpk.controlplane import wal

METADATA, ENTRY, STATE = 1, 2, 3


class Log:
    """The content of one file, growing."""

    def __init__(self, crc: int = 0) -> None:
        self.crc = crc
        self.content = b""
        self._add(wal.CHECKSUM, b"")

    def entry(self, data: bytes) -> Self:
        """A change."""
        return self._add(ENTRY, data)

    def snapshot(self, index: int) -> Self:
        """From here on the database must hold all up to the index."""
        return self._add(wal.SNAPSHOT, b"\x08" + _varint(index) + b"\x10\x02")

    def _add(self, kind: int, data: bytes) -> Self:
        if kind != wal.CHECKSUM:
            self.crc = wal.crc32c(data, self.crc)
        record = b"\x08" + _varint(kind) + b"\x10" + _varint(self.crc)
        if data:
            record += b"\x1a" + _varint(len(data)) + data
        padding = -len(record) % 8
        word = len(record) | ((0x80 | padding) << 56 if padding else 0)
        self.content += word.to_bytes(8, "little") + record + bytes(padding)
        return self


def _varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])
