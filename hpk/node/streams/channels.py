"""A WebSocket on a wire: the numbered channels of Kubernetes' subprotocols, or a tunnel for another protocol."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

import structlog

from hpk.node.streams import websocket, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG = structlog.get_logger(__name__)

CLOSE_CHANNEL = 255
"""In version 5, a message on this channel names a channel that the client has closed."""
_FOUR = 4
"""Characters in a base64 group."""


class Socket:
    """The WebSocket: it answers pings and sends the close frame once."""

    def __init__(self, below: wire.Wire, *, on_part: Callable[[websocket.Part], None]) -> None:
        self._wire, self._on_part = below, on_part
        self._decoder = websocket.MessageDecoder()
        self._has_said_goodbye = self._is_over = False

    def feed(self, data: bytes) -> None:
        """Process bytes from the client; hang up on a protocol error."""
        if self._is_over:
            return
        try:
            for event in self._decoder.feed(data):
                match event:
                    case websocket.Part():
                        self._on_part(event)
                    case websocket.PingMessage(told):
                        if not self._has_said_goodbye:
                            self._wire.send_now(websocket.pong(told))
                    case websocket.Close():
                        self.leave()
                        return
        except websocket.WebSocketError as error:
            LOG.warning("Closing the connection of a client that violates WebSocket", error=str(error))
            self.leave(error.code)

    def say_goodbye(self, code: int = websocket.NORMAL) -> None:
        """Send a close frame. The client answers with its own, and then the connection is closed."""
        if not self._has_said_goodbye:
            self._has_said_goodbye = True
            self._wire.send_now(websocket.close(code))

    def leave(self, code: int = websocket.NORMAL) -> None:
        """Send a close frame and close the connection."""
        self._is_over = True
        self.say_goodbye(code)
        self._wire.hang_up()


class Channels:
    """Channels in a WebSocket: the first byte (in base64: digit) of each message is the channel's number."""

    def __init__(
        self, below: wire.Wire, inboxes: Mapping[int, wire.Inbox], *, is_base64: bool, can_close: bool
    ) -> None:
        """Route the client's messages into these inboxes; drop those on other channels."""
        self.socket = Socket(below, on_part=self._take)
        self._wire, self._inboxes = below, inboxes
        self._is_base64, self._can_close = is_base64, can_close
        self._channel: int | None = None
        """The channel of the current message."""
        self._rest = b""

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message, and wait until the client has read most of the bytes before."""
        await self._wire.send(*self._message(channel, data))

    def send_now(self, channel: int, data: bytes) -> None:
        """Send a short message without waiting."""
        self._wire.send_now(b"".join(self._message(channel, data)))

    def _message(self, channel: int, data: bytes) -> tuple[bytes, bytes]:
        number = ord("0") + channel if self._is_base64 else channel
        body = base64.b64encode(data) if self._is_base64 else data
        return websocket.head(len(body) + 1, is_text=self._is_base64) + bytes((number,)), body

    def _take(self, part: websocket.Part) -> None:
        data = part.data
        if part.is_first:
            self._channel, self._rest = None, b""
        if self._channel is None and data:
            self._channel = data[0] - ord("0") if self._is_base64 else data[0]
            data = data[1:]
        if self._channel is None:
            return
        if self._can_close and self._channel == CLOSE_CHANNEL:
            for number in data:
                if number in self._inboxes:
                    self._inboxes[number].end()
        elif self._channel in self._inboxes:
            plain = self._plain(data, is_last=part.is_last) if self._is_base64 else data
            self._inboxes[self._channel].put(plain)

    def _plain(self, data: bytes, *, is_last: bool) -> bytes:
        whole = self._rest + data
        end = len(whole) if is_last else len(whole) - len(whole) % _FOUR
        self._rest = whole[end:]
        try:
            return base64.b64decode(whole[:end], validate=True)
        except binascii.Error as error:
            raise websocket.WebSocketError(f"Cannot read base64: {error}", code=websocket.UNACCEPTABLE) from error


class WebSocketTunnel:
    """Another protocol's byte stream, carried in WebSocket messages of any size: a :class:`wire.Carrier`."""

    def __init__(self, below: wire.Wire, on_bytes: Callable[[bytes], None]) -> None:
        self.socket = Socket(below, on_part=lambda part: on_bytes(part.data))
        self._wire = below
        self.hold, self.release = below.hold, below.release

    async def send(self, *parts: bytes) -> None:
        """Send bytes, and wait until the client has read most of those before."""
        await self._wire.send(websocket.head(sum(map(len, parts))), *parts)

    def send_now(self, data: bytes) -> None:
        """Send a few bytes without waiting."""
        self._wire.send_now(websocket.head(len(data)) + data)

    def hang_up(self) -> None:
        """Flush, then close."""
        self.socket.leave()
