"""The frames of etcd's write-ahead log, as far as copying needs them. Pure.

A file is a sequence of frames: eight bytes of length (little-endian; the uppermost byte gives the padding), then a
protobuf record ``{type = 1, crc = 2, data = 3}``. A length of zero is the end: files are preallocated at 64 MB. Each
record's checksum (CRC-32C) continues the previous one's. This is the format since etcd 3.0 (server/storage/wal:
encoder.go, decoder.go, walpb/record.proto).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CHECKSUM = 4
SNAPSHOT = 5
"""Record types. A snapshot record says that the database on disk has everything up to its index."""
_LENGTH_BYTES = 8
_CHUNK = 1 << 18
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


@dataclass(frozen=True)
class Frame:
    """One record: its start and end, and its fields."""

    start: int
    end: int
    type: int
    crc: int
    data: bytes

    @property
    def snapshot_index(self) -> int:
        """The index that the database must reach, in a snapshot record; 0 in any other."""
        return dict(_fields(self.data)).get(1, 0) if self.type == SNAPSHOT else 0  # type: ignore[return-value]


def frames(content: bytes, *, start: int = 0) -> Iterator[Frame]:
    """Yield the complete frames from ``start`` on."""
    while start + _LENGTH_BYTES <= len(content):
        word = int.from_bytes(content[start : start + _LENGTH_BYTES], "little")
        length = word & ((1 << 56) - 1)
        padding = (word >> 56) & 7 if word >> 63 else 0
        begin = start + _LENGTH_BYTES
        end = begin + length + padding
        if length == 0 or end > len(content):
            return
        record = dict(_fields(content[begin : begin + length]))
        data = record.get(3, b"")
        yield Frame(
            start, end, _number(record.get(1)), _number(record.get(2)), data if isinstance(data, bytes) else b""
        )
        start = end


def read(file: BinaryIO) -> tuple[bytes, list[Frame]]:
    """Return what etcd has written from the file's position on, perhaps with some zeros behind, and its frames."""
    content, found, end = b"", list[Frame](), 0
    while True:
        chunk = file.read(max(_CHUNK, len(content)))
        content += chunk
        # Continue at the last frame, so that a large file is not parsed again for each chunk.
        found += frames(content, start=end)
        end = found[-1].end if found else 0
        if not chunk or (len(content) >= end + _LENGTH_BYTES and not any(content[end : end + _LENGTH_BYTES])):
            return content, found


def sound_end(content: bytes) -> int:
    """Return the valid end of the log: before a last frame that was written in part."""
    before: Frame | None = None
    last: Frame | None = None
    for frame in frames(content):
        before, last = last, frame
    if last is None:
        return 0
    if last.type == CHECKSUM or before is None:
        return last.end
    return last.end if crc32c(last.data, before.crc) == last.crc else last.start


def crc32c(data: bytes, crc: int = 0) -> int:
    """Continue a CRC-32C. It processes some 5 MB/s, so use it for single records only."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _row(number: int) -> int:
    for _ in range(8):
        number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
    return number


_TABLE = tuple(_row(number) for number in range(256))


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield field numbers and values of a protobuf message, up to a field that is unknown or truncated."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        value, position = _varint(message, position)
        if key & 7 == 0:
            yield key >> 3, value
        elif key & 7 == 2:  # noqa: PLR2004 - length-delimited
            yield key >> 3, message[position : position + value]
            position += value
        else:
            return


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message):
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the bit that says that more follows
            break
        shift += 7
    return value, position
