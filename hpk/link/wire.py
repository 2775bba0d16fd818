"""Sessions' requests and events as messages of the link, and back; pure.

Reports and requests need no conversion: `client` and `server` use `link_pb2` for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, assert_never

from hpk.link import link_pb2, sessions

if TYPE_CHECKING:
    from collections.abc import Callable

SERVICE = "hpk.link.v1.Link"
SESSION = f"/{SERVICE}/Session"
SERVER_NAME = "hpk-kubelet"
"""The name in the kubelet's certificate, wherever it runs."""
_Message = TypeVar("_Message")
_VARINT, _BYTES = 0, 2  # protobuf's wire types
_MORE, _SEVEN_BITS = 0x80, 0x7F
_MOST_VARINT_BYTES = 5  # all numbers that are read here have 32 bits
_MOST_CHANNEL = (1 << 32) - 1


class Codec(Generic[_Message]):
    """Messages of a Session call as bytes, and back: protobuf, with a separate way for data.

    Protobuf copies data three times on each end, which for a megabyte takes as long as encrypting it.
    """

    def __init__(self, kind: Any) -> None:
        """Take the messages' type, which has a field ``data``."""
        numbers = {field.name: field.number for field in kind.DESCRIPTOR.fields}
        inner = {field.name: field.number for field in link_pb2.Data.DESCRIPTOR.fields}
        self._tag = numbers["data"] << 3 | _BYTES
        self._channel_tag, self._data_tag = inner["channel"] << 3 | _VARINT, inner["data"] << 3 | _BYTES
        self._parse: Callable[[bytes], _Message] = kind.FromString

    def dump(self, message: sessions.Data | _Message) -> bytes:
        """Return the bytes of a message."""
        if not isinstance(message, sessions.Data):
            raw: bytes = message.SerializeToString()  # type: ignore[attr-defined]
            return raw
        channel = bytes((self._channel_tag,)) + _varint(message.channel) if message.channel else b""
        head = channel + bytes((self._data_tag,)) + _varint(len(message.data))
        return b"".join((bytes((self._tag,)), _varint(len(head) + len(message.data)), head, message.data))

    def load(self, raw: bytes) -> sessions.Data | _Message:
        """Return the message of these bytes.

        Raises:
            google.protobuf.message.DecodeError: They are not a message; gRPC ends the call.
        """
        return self._data(raw) or self._parse(raw)

    def _data(self, raw: bytes) -> sessions.Data | None:
        """Return data as :meth:`dump` and protobuf write it; None for anything else, even data in another encoding."""
        if not raw or raw[0] != self._tag:
            return None
        length, at = _number(raw, 1)
        if at + length != len(raw) or not length:
            return None
        channel = 0
        if raw[at] == self._channel_tag:
            channel, at = _number(raw, at + 1)
        if at >= len(raw) or raw[at] != self._data_tag:
            return None
        length, at = _number(raw, at + 1)
        return sessions.Data(channel & _MOST_CHANNEL, raw[at:]) if length and at + length == len(raw) else None


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > _SEVEN_BITS:
        parts.append(number & _SEVEN_BITS | _MORE)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins there and its end; read an unterminated one as far as it goes."""
    found = 0
    for index, byte in enumerate(raw[at : at + _MOST_VARINT_BYTES]):
        found |= (byte & _SEVEN_BITS) << 7 * index
        if not byte & _MORE:
            return found, at + index + 1
    return found, len(raw) + 1


FROM_AGENT: Codec[link_pb2.FromAgent] = Codec(link_pb2.FromAgent)
TO_AGENT: Codec[link_pb2.ToAgent] = Codec(link_pb2.ToAgent)


def open_message(name: str, request: sessions.Request) -> link_pb2.Open:
    """Return the message that requests a session."""
    match request:
        case sessions.Exec():
            argv = [word.encode("utf-8", "surrogateescape") for word in request.argv]
            exec_ = link_pb2.Exec(container=request.container, argv=argv, streams=_streams(request))
            if request.size:
                exec_.size.width, exec_.size.height = request.size
            return link_pb2.Open(session=name, exec=exec_)
        case sessions.Attach():
            attach = link_pb2.AttachTo(container=request.container, streams=_streams(request))
            return link_pb2.Open(session=name, attach=attach)
        case sessions.Forward():
            return link_pb2.Open(session=name, forward=link_pb2.Forward(port=request.port))
        case _:
            assert_never(request)


def request(message: link_pb2.Open) -> sessions.Request | None:
    """Return the request in a message; None if its kind is newer than this program."""
    kind = message.WhichOneof("kind")
    if kind == "exec":
        asked = message.exec
        argv = tuple(word.decode("utf-8", "surrogateescape") for word in asked.argv)
        size = (asked.size.width, asked.size.height) if asked.HasField("size") else None
        return sessions.Exec(container=asked.container, argv=argv, size=size, **_flags(asked.streams))
    if kind == "attach":
        return sessions.Attach(container=message.attach.container, **_flags(message.attach.streams))
    if kind == "forward":
        return sessions.Forward(port=message.forward.port)
    return None


def from_agent(event: sessions.Event) -> sessions.Data | link_pb2.FromAgent:
    """Return the message for an event, for :data:`FROM_AGENT`."""
    match event:
        case sessions.Data():
            return event
        case sessions.Closed():
            return link_pb2.FromAgent(closed=link_pb2.Closed(channel=event.channel))
        case sessions.Ended():
            ended = link_pb2.Ended(exit_code=event.exit_code, error=event.error, reason=event.reason)
            return link_pb2.FromAgent(ended=ended)
        case _:
            assert_never(event)


def event(message: sessions.Data | link_pb2.FromAgent) -> sessions.Event | None:
    """Return the event in a message; None for an unknown kind."""
    if (found := channel_event(message)) is not None:
        return found
    if isinstance(message, link_pb2.FromAgent) and message.WhichOneof("kind") == "ended":
        ended = message.ended
        exit_code = ended.exit_code if ended.HasField("exit_code") else None
        return sessions.Ended(exit_code=exit_code, error=ended.error, reason=ended.reason)
    return None


def channel_event(
    message: sessions.Data | link_pb2.FromAgent | link_pb2.ToAgent,
) -> sessions.Data | sessions.Closed | None:
    """Return a channel's data or end, in either direction; None for another kind."""
    if isinstance(message, sessions.Data):
        return message
    kind = message.WhichOneof("kind")
    if kind == "data":
        return sessions.Data(message.data.channel, message.data.data)
    return sessions.Closed(message.closed.channel) if kind == "closed" else None


def _streams(request: sessions.Exec | sessions.Attach) -> link_pb2.Streams:
    return link_pb2.Streams(**_flags(request))


def _flags(streams: sessions.Exec | sessions.Attach | link_pb2.Streams) -> dict[str, bool]:
    return {name: getattr(streams, name) for name in ("stdin", "stdout", "stderr", "tty")}
