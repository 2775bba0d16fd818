"""SPDY/3.1 as Kubernetes speaks it: conversion between bytes and frames. Pure.

There is no flow control: Kubernetes' client neither sends nor honours WINDOW_UPDATE, so only TCP limits the rate. A
decoder holds at most a frame's head, a control frame's payload and zlib's window; data frames of up to 16 MiB are
passed on in the pieces in which they arrive.
Source: the SPDY/3.1 draft, and its only relevant implementation, moby/spdystream 0.5.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

PROTOCOL_ERROR, REFUSED, CANCEL = 1, 3, 5
"""Statuses of RST_STREAM; the first is also one of GOAWAY."""

MOST_CONTROL_BYTES = 64 << 10
MOST_HEADER_BYTES = 64 << 10
"""The limit of a control frame's payload, and of its inflated headers. Kubernetes sends some 100."""
MOST_DATA_BYTES = (1 << 24) - 1
MOST_HEADERS = 100

_VERSION = 3
_CONTROL = 1 << 31
_FIN = 0x01
_HEAD_BYTES = 8

_WORDS = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow"
    " authorization cache-control connection content-base content-encoding content-language content-length"
    " content-location content-md5 content-range content-type date etag expect expires from host if-match"
    " if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma"
    " proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade"
    " user-agent vary via warning www-authenticate method get status|200 OK|version|HTTP/1.1|url public set-cookie"
    " keep-alive origin"
)
_TAIL = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 Non-Authoritative"
    " Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not Found500"
    " Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec"
    " 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8"
    "charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """Return the draft's preset dictionary: words prefixed with their lengths, then plain text."""
    before, *with_spaces, after = _WORDS.split("|")
    words = [*before.split(" "), *with_spaces, *after.split(" ")]
    return b"".join(struct.pack(">I", len(word)) + word.encode() for word in words) + _TAIL.encode()


DICTIONARY = _dictionary()


class _Kind:
    """Control frame types that matter here."""

    SYN_STREAM, SYN_REPLY, RST_STREAM, PING, GOAWAY, HEADERS = 1, 2, 3, 6, 7, 8


class SpdyError(errors.Rejected):
    """The client violates SPDY/3.1; nothing that follows can be understood."""


@dataclass(frozen=True, slots=True)
class Opened:
    """SYN_STREAM: the client opens a stream."""

    stream: int
    headers: Mapping[str, str] = field(default_factory=dict)
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class DataFrame:
    """Bytes on a stream; ``is_last`` ends this direction."""

    stream: int
    data: bytes
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """RST_STREAM: the client resets both directions of a stream."""

    stream: int
    status: int


@dataclass(frozen=True, slots=True)
class PingFrame:
    """PING, to be answered with the same number if the client sent it (odd)."""

    number: int


@dataclass(frozen=True, slots=True)
class GoAway:
    """GOAWAY: the client opens no more streams."""

    last_stream: int


Frame = Opened | DataFrame | Reset | PingFrame | GoAway


class FrameDecoder:
    """A decoder of frames from a client's bytes in arbitrary pieces."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zdict=DICTIONARY)
        self._partial = bytearray()
        """The incomplete head of a frame, or payload of a control frame."""
        self._wanted = _HEAD_BYTES
        self._control: tuple[int, int] | None = None
        """Type and flags of the control frame whose payload is incomplete."""
        self._stream, self._is_last, self._left = 0, False, 0
        """The current data frame, and its bytes still missing."""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames, and parts of data frames, that these bytes complete.

        Raises:
            SpdyError: They are invalid; discard the decoder.
        """
        frames: list[Frame] = []
        view = memoryview(data)
        while view:
            if self._left:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                # Copy: a small slice would keep the whole buffer in memory.
                frames.append(DataFrame(self._stream, bytes(part), self._is_last and not self._left))
                continue
            missing = self._wanted - len(self._partial)
            self._partial += view[:missing]
            view = view[missing:]
            if len(self._partial) == self._wanted:
                whole, self._partial = bytes(self._partial), bytearray()
                self._take(whole, frames)
        return frames

    def _take(self, whole: bytes, frames: list[Frame]) -> None:
        if self._control is not None:
            (kind, flags), self._control = self._control, None
            self._wanted = _HEAD_BYTES
            frames.extend(self._control_frame(kind, flags, whole))
            return
        word, rest = struct.unpack(">II", whole)
        flags, length = rest >> 24, rest & MOST_DATA_BYTES
        if word & _CONTROL:
            version, kind = word >> 16 & 0x7FFF, word & 0xFFFF
            if version != _VERSION:
                raise SpdyError(f"Cannot read SPDY version {version}")
            if length > MOST_CONTROL_BYTES:
                raise SpdyError(f"Cannot read a control frame of {length} bytes")
            self._control, self._wanted = (kind, flags), length
            if not length:
                self._take(b"", frames)
        else:
            self._stream, self._is_last, self._left = word, bool(flags & _FIN), length
            if self._is_last and not length:
                frames.append(DataFrame(word, b"", is_last=True))

    def _control_frame(self, kind: int, flags: int, payload: bytes) -> list[Frame]:
        try:
            match kind:
                case _Kind.SYN_STREAM:
                    (stream,) = struct.unpack_from(">I", payload)
                    return [Opened(stream & ~_CONTROL, self._headers(payload[10:]), bool(flags & _FIN))]
                case _Kind.SYN_REPLY | _Kind.HEADERS:  # zlib must see all headers; otherwise only the end matters
                    (stream,) = struct.unpack_from(">I", payload)
                    self._headers(payload[4:])
                    return [DataFrame(stream & ~_CONTROL, b"", is_last=True)] if flags & _FIN else []
                case _Kind.RST_STREAM:
                    stream, status = struct.unpack(">II", payload)
                    return [Reset(stream & ~_CONTROL, status)]
                case _Kind.PING:
                    return [PingFrame(*struct.unpack(">I", payload))]
                case _Kind.GOAWAY:
                    stream, _ = struct.unpack(">II", payload)
                    return [GoAway(stream & ~_CONTROL)]
        except struct.error as error:
            raise SpdyError(f"Cannot read a control frame of type {kind}: {error}") from error
        return []  # SETTINGS, WINDOW_UPDATE, and unknown types, which the draft says to ignore

    def _headers(self, block: bytes) -> dict[str, str]:
        """Inflate and parse a header block; keep the first of several values."""
        try:
            plain = self._inflater.decompress(block, MOST_HEADER_BYTES)
        except zlib.error as error:
            raise SpdyError(f"Cannot inflate headers: {error}") from error
        if self._inflater.unconsumed_tail or self._inflater.eof:
            raise SpdyError("Cannot inflate headers: they are too long, or end the stream")
        (count,) = struct.unpack_from(">I", plain)
        if count > MOST_HEADERS:
            raise SpdyError(f"Cannot read {count} headers: at most {MOST_HEADERS} are allowed")
        found: dict[str, str] = {}
        at = 4
        for _ in range(count):
            name, at = _text(plain, at)
            value, at = _text(plain, at)
            found[name] = value.partition("\0")[0]
        return found


def _text(plain: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">I", plain, at)
    end = at + 4 + length
    if end > len(plain):
        raise SpdyError("Cannot read headers: one is longer than the block")
    return plain[at + 4 : end].decode("latin-1"), end


class FrameEncoder:
    """An encoder of the server's frames."""

    def __init__(self) -> None:
        # Only "no headers" is ever compressed: the smallest window that holds the dictionary, 10 KB instead of 268.
        self._deflater = zlib.compressobj(level=9, wbits=11, memLevel=1, zdict=DICTIONARY)

    def reply(self, stream: int) -> bytes:
        """Return a SYN_REPLY without headers, which accepts the stream."""
        block = self._deflater.compress(bytes(4)) + self._deflater.flush(zlib.Z_SYNC_FLUSH)
        return _control(_Kind.SYN_REPLY, struct.pack(">I", stream) + block)


def data_head(stream: int, length: int, *, is_last: bool = False) -> bytes:
    """Return the head of a data frame of at most ``MOST_DATA_BYTES``."""
    return struct.pack(">II", stream, (_FIN << 24 if is_last else 0) | length)


def reset(stream: int, status: int) -> bytes:
    """Return a RST_STREAM frame."""
    return _control(_Kind.RST_STREAM, struct.pack(">II", stream, status))


def ping(number: int) -> bytes:
    """Return a PING frame, or the answer to one."""
    return _control(_Kind.PING, struct.pack(">I", number))


def go_away(last_stream: int, *, status: int = 0) -> bytes:
    """Return a GOAWAY frame: streams after this one are not served."""
    return _control(_Kind.GOAWAY, struct.pack(">II", last_stream, status))


def _control(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", _CONTROL >> 16 | _VERSION, kind, len(payload)) + payload
