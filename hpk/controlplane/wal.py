"""The frames of etcd's write-ahead log, as far as copying it needs them; pure.

A file is a row of frames: eight bytes of length (little-endian; the uppermost byte says how much padding follows),
then a protobuf record ``{type = 1, crc = 2, data = 3}``.  A length of zero is the end: files are made 64 MB long
beforehand.  Each record's checksum (CRC-32C) continues that of the one before.  So it is since etcd 3.0
(server/storage/wal: encoder.go, decoder.go, walpb/record.proto).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

CHECKSUM = 4
SNAPSHOT = 5
"""Types of records.  A snapshot's says that the database holds all up to its index, and is there on the disk."""
_LENGTH_BYTES = 8
_CHUNK = 1 << 18
_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


@dataclass(frozen=True)
class Frame:
    """One record: where it begins and where the next one would."""

    start: int
    end: int
    type: int
    crc: int
    data: bytes

    @property
    def snapshot_index(self) -> int:
        """Of a snapshot's record: up to where the database must reach; 0 of any other."""
        return dict(_fields(self.data)).get(1, 0) if self.type == SNAPSHOT else 0  # type: ignore[return-value]


def frames(content: bytes, *, start: int = 0) -> Iterator[Frame]:
    """The whole frames from ``start`` on; ends before one that is cut short."""
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
    """What etcd has written from the file's position on, its frames, and maybe some of the zeros behind."""
    content, found, end = b"", list[Frame](), 0
    while True:
        chunk = file.read(max(_CHUNK, len(content)))
        content += chunk
        # On from the last frame: a file of many is not looked through again for each piece.
        found += frames(content, start=end)
        end = found[-1].end if found else 0
        if not chunk or (len(content) >= end + _LENGTH_BYTES and not any(content[end : end + _LENGTH_BYTES])):
            return content, found


def sound_end(content: bytes) -> int:
    """Where the log ends that can be relied on: before a last frame that was written in part."""
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
    """Continue a CRC-32C; some 5 MB a second, so for single records only."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def field(message: bytes, number: int) -> bytes:
    """A byte string of a protobuf message, by its field's number; empty if it is not there."""
    value = dict(_fields(message)).get(number, b"")
    return value if isinstance(value, bytes) else b""


def _row(number: int) -> int:
    for _ in range(8):
        number = (number >> 1) ^ (_POLYNOMIAL if number & 1 else 0)
    return number


_TABLE = tuple(_row(number) for number in range(256))


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message: numbers and byte strings; ends at what it does not know or is cut short."""
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
