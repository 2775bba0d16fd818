"""The server's end of a SPDY connection: streams that the client opens, each with its own inbox."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from hpk.node.streams import spdy, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOG = structlog.get_logger(__name__)

CHUNK_BYTES = 512 << 10
"""The size of our data frames; the client must receive a whole frame before it sees the next."""


class Stream:
    """A SPDY stream.

    Attributes:
        inbox: What the client sends on it.
        on_reset: Called when the client resets the stream.
    """

    def __init__(self, connection: Connection, number: int, headers: Mapping[str, str]) -> None:
        self.number, self.headers = number, headers
        self.inbox = wire.Inbox(connection.carrier)
        self.on_reset: Callable[[], None] = lambda: None
        self.is_open = True
        """Whether we may still send."""
        self.is_heard = True
        """Whether the client may still send."""
        self._connection = connection

    async def send(self, data: bytes) -> None:
        """Send bytes, waiting for space; send nothing if the stream is closed."""
        for at in range(0, len(data), CHUNK_BYTES):
            if not self.is_open:
                return
            part = data if len(data) <= CHUNK_BYTES else data[at : at + CHUNK_BYTES]
            await self._connection.carrier.send(spdy.data_head(self.number, len(part)), part)

    def close(self, last_words: bytes = b"") -> None:
        """Close our direction after these few bytes; idempotent, does not wait."""
        if self.is_open:
            self.is_open = False
            head = spdy.data_head(self.number, len(last_words), is_last=True)
            self._connection.carrier.send_now(head + last_words)
            self._connection.tidy(self)

    def reset(self, status: int = spdy.CANCEL) -> None:
        """Reset both directions; idempotent."""
        if self.is_open or self.is_heard:
            self.is_open = self.is_heard = False
            self.inbox.drop()
            self._connection.carrier.send_now(spdy.reset(self.number, status))
            self._connection.tidy(self)


class Connection:
    """A SPDY connection. The client opens streams, which ``on_open`` accepts or refuses."""

    def __init__(self, *, on_open: Callable[[Stream], bool], most_streams: int) -> None:
        """Prepare the connection; :attr:`carrier` must be set before any bytes arrive.

        `on_open` is called with each new stream; the stream is reset if it returns False, or if there would be more
        than `most_streams` at once.
        """
        self.carrier: wire.Carrier
        self._on_open, self._most_streams = on_open, most_streams
        self._decoder, self._encoder = spdy.FrameDecoder(), spdy.FrameEncoder()
        self._streams: dict[int, Stream] = {}
        self._last_number = 0
        self._is_over = self._goes_away = False

    def feed(self, data: bytes) -> None:
        """Process bytes from the client; hang up on a protocol error."""
        if self._is_over:
            return
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
        except spdy.SpdyError as error:
            LOG.warning("Closing the connection of a client that violates SPDY", error=str(error))
            self.leave(status=spdy.PROTOCOL_ERROR)

    def leave(self, *, status: int = 0) -> None:
        """Send GOAWAY and close the connection; idempotent."""
        if not self._is_over:
            self._is_over = True
            self.carrier.send_now(spdy.go_away(self._last_number, status=status))
            self.carrier.hang_up()

    def tidy(self, stream: Stream) -> None:
        """Remove a stream that is closed in both directions."""
        if not stream.is_open and not stream.is_heard:
            self._streams.pop(stream.number, None)
            if self._goes_away and not self._streams:
                self.leave()

    def _take(self, frame: spdy.Frame) -> None:
        match frame:
            case spdy.DataFrame():
                self._receive(frame)
            case spdy.Opened():
                self._open(frame)
            case spdy.PingFrame(number):
                if number % 2:
                    self.carrier.send_now(spdy.ping(number))
            case spdy.Reset(number):
                self._lose(number)
            case spdy.GoAway():
                self._goes_away = True
                if not self._streams:
                    self.leave()

    def _receive(self, frame: spdy.DataFrame) -> None:
        stream = self._streams.get(frame.stream)
        if stream is not None and stream.is_heard:
            stream.inbox.put(frame.data)
            if frame.is_last:
                self._end(stream)

    def _lose(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.is_open = stream.is_heard = False
            stream.inbox.drop()
            self.tidy(stream)
            stream.on_reset()

    def _end(self, stream: Stream) -> None:
        stream.is_heard = False
        stream.inbox.end()
        self.tidy(stream)

    def _open(self, frame: spdy.Opened) -> None:
        if not frame.stream % 2 or frame.stream <= self._last_number:
            raise spdy.SpdyError(f"Cannot open stream {frame.stream} after {self._last_number}")
        self._last_number = frame.stream
        if len(self._streams) >= self._most_streams or self._goes_away:
            self.carrier.send_now(spdy.reset(frame.stream, spdy.REFUSED))
            return
        stream = self._streams[frame.stream] = Stream(self, frame.stream, frame.headers)
        # Send the reply at once: the client opens the next stream only after it.
        self.carrier.send_now(self._encoder.reply(frame.stream))
        if frame.is_last:
            self._end(stream)
        if not self._on_open(stream):
            stream.reset(spdy.PROTOCOL_ERROR)
