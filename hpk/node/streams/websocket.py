"""WebSocket frames (RFC 6455) on a server: conversion between bytes and messages. Pure.

aiohttp has WebSockets too, but passes on whole messages: 100 MB that a client writes to a program's standard input in
one message would be in memory at once. Here a message is passed on in the pieces in which it arrives.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp._websocket import helpers

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Mapping

NORMAL, PROTOCOL_ERROR, UNACCEPTABLE = 1000, 1002, 1003
"""Status codes of a close frame."""

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_FIN, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_TWO_BYTES, _EIGHT_BYTES = 126, 127
"""Length bytes of a frame that announce an extended length."""
_MASK_BYTES = 4
_KEY_BYTES = 16


class WebSocketError(errors.Rejected):
    """The client violates RFC 6455, or sends what we do not support; nothing that follows can be understood.

    Attributes:
        code: The close frame's status code.
    """

    def __init__(self, message: str, *, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a message; an empty message is one empty piece."""

    data: bytes
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class PingMessage:
    """A ping, to be answered by a pong with the same data."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """A close frame, to be answered by another."""

    code: int


Event = Part | PingMessage | Close


def is_asked_for(headers: Mapping[str, str]) -> bool:
    """Return whether a request asks for a WebSocket."""
    return headers.get("Upgrade", "").lower() == "websocket" and "upgrade" in headers.get("Connection", "").lower()


def accept(headers: Mapping[str, str]) -> str:
    """Return the value of ``Sec-WebSocket-Accept`` for a request.

    Raises:
        WebSocketError: It is not a request for a WebSocket of version 13.
    """
    key = headers.get("Sec-WebSocket-Key", "").strip()
    if headers.get("Sec-WebSocket-Version", "").strip() != "13":
        raise WebSocketError("Cannot become a WebSocket: the header Sec-WebSocket-Version must be 13")
    try:
        is_right = len(base64.b64decode(key, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        is_right = False
    if not is_right:
        raise WebSocketError("Cannot become a WebSocket: the header Sec-WebSocket-Key must be 16 bytes in base64")
    # The protocol prescribes SHA-1; security does not depend on its strength.
    return base64.b64encode(hashlib.sha1((key + _GUID).encode(), usedforsecurity=False).digest()).decode()


class MessageDecoder:
    """A decoder of messages from a client's bytes in arbitrary pieces."""

    def __init__(self) -> None:
        self._partial = bytearray()
        """The incomplete head of a frame, or payload of a control frame."""
        self._wanted = 2
        self._opcode, self._is_final, self._left = 0, False, 0
        """The current frame, and its payload bytes still missing."""
        self._mask = b""
        self._is_in_control = False
        self._is_in_message = self._has_begun = False
        """Whether a message is incomplete, and whether a piece of it was passed on."""

    def feed(self, data: bytes) -> list[Event]:
        """Return the pieces of messages, and the control frames, that these bytes complete.

        Raises:
            WebSocketError: They are invalid; discard the decoder.
        """
        events: list[Event] = []
        view = memoryview(data)
        while view:
            if self._left and not self._is_in_control:
                part, view = view[: self._left], view[self._left :]
                self._left -= len(part)
                events.append(self._piece(self._unmasked(part)))
                continue
            missing = self._wanted - len(self._partial)
            self._partial += view[:missing]
            view = view[missing:]
            if len(self._partial) == self._wanted:
                self._take(events)
        return events

    def _take(self, events: list[Event]) -> None:
        """Process the bytes awaited: the first two, the whole head, or a control frame's payload."""
        if self._is_in_control:
            events += self._control(self._unmasked(self._partial))
            self._is_in_control = False
        else:
            first, second = self._partial[:2]
            length = second & ~_MASKED
            extra = {_TWO_BYTES: 2, _EIGHT_BYTES: 8}.get(length, 0)
            self._wanted = 2 + extra + _MASK_BYTES
            if len(self._partial) < self._wanted:
                self._check(first, second)
                return
            if extra:
                length = int.from_bytes(self._partial[2 : 2 + extra], "big")
            self._begin(first, length, events)
            if self._is_in_control:
                return
        self._partial, self._wanted = bytearray(), 2

    def _check(self, first: int, second: int) -> None:
        opcode = first & 0x0F
        if first & _RESERVED:
            raise WebSocketError("Cannot read a frame with reserved bits")
        if not second & _MASKED:
            raise WebSocketError("Cannot read a client's frame that is not masked")
        if opcode >= _CLOSE:
            if not first & _FIN or second & ~_MASKED > 125 or opcode > _PONG:  # noqa: PLR2004 - the RFC's number
                raise WebSocketError("Cannot read a control frame that is too long, fragmented, or of an unknown kind")
        elif opcode > _BINARY or (opcode == _CONTINUATION) != self._is_in_message:
            raise WebSocketError("Cannot read a frame that is out of order or of an unknown kind")

    def _begin(self, first: int, length: int, events: list[Event]) -> None:
        """Process a complete frame head."""
        if length >> 63:
            raise WebSocketError("Cannot read a frame whose length has the highest bit set")
        opcode, self._mask = first & 0x0F, bytes(self._partial[-_MASK_BYTES:])
        if opcode >= _CLOSE:
            self._opcode, self._left, self._is_in_control = opcode, length, True
            self._partial, self._wanted = bytearray(), length
            if not length:
                self._take(events)
            self._left = 0
            return
        self._is_final, self._left = bool(first & _FIN), length
        if opcode != _CONTINUATION:
            self._has_begun = False
        self._is_in_message = not self._is_final
        if not length and self._is_final:
            events.append(self._piece(b""))

    def _piece(self, data: bytes) -> Part:
        is_first, self._has_begun = not self._has_begun, True
        return Part(data, is_first, self._is_final and not self._left)

    def _unmasked(self, data: bytearray | memoryview) -> bytes:
        """Return the next payload bytes, unmasked."""
        plain, turn = bytearray(data), len(data) % _MASK_BYTES
        # Private, but in C, since aiohttp 3.11. Pure Python is 30 times slower and doubles the cost of an upload.
        helpers.websocket_mask(self._mask, plain)
        self._mask = self._mask[turn:] + self._mask[:turn]
        return bytes(plain)

    def _control(self, payload: bytes) -> list[Event]:
        match self._opcode:
            case 0x9:
                return [PingMessage(payload)]
            case 0x8:
                return [Close(int.from_bytes(payload[:2], "big") if len(payload) > 1 else NORMAL)]
        return []  # an unsolicited pong


def head(length: int, *, is_text: bool = False) -> bytes:
    """Return the frame head of a message of so many bytes."""
    first = _FIN | (_TEXT if is_text else _BINARY)
    if length < _TWO_BYTES:
        return bytes((first, length))
    if length < 1 << 16:
        return struct.pack(">BBH", first, _TWO_BYTES, length)
    return struct.pack(">BBQ", first, _EIGHT_BYTES, length)


def pong(data: bytes) -> bytes:
    """Return the answer to a ping."""
    return bytes((_FIN | _PONG, len(data))) + data


def close(code: int = NORMAL) -> bytes:
    """Return a close frame."""
    return bytes((_FIN | _CLOSE, 2)) + code.to_bytes(2, "big")
