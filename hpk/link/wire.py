"""Sessions' requests and events as messages of the link, and back; pure."""

from __future__ import annotations

from typing import assert_never

from hpk.link import link_pb2, sessions


def open_message(name: str, request: sessions.Request) -> link_pb2.Open:
    """What asks the agent for a session."""
    match request:
        case sessions.Exec():
            argv = [word.encode("utf-8", "surrogateescape") for word in request.argv]
            exec_ = link_pb2.Exec(container=request.container, argv=argv, streams=_streams(request))
            return link_pb2.Open(session=name, exec=exec_)
        case sessions.Attach():
            attach = link_pb2.AttachTo(container=request.container, streams=_streams(request))
            return link_pb2.Open(session=name, attach=attach)
        case sessions.Forward():
            return link_pb2.Open(session=name, forward=link_pb2.Forward(port=request.port))
        case _:
            assert_never(request)


def request(message: link_pb2.Open) -> sessions.Request | None:
    """What the agent is asked for; None if it is something newer than this program."""
    kind = message.WhichOneof("kind")
    if kind == "exec":
        argv = tuple(word.decode("utf-8", "surrogateescape") for word in message.exec.argv)
        container, streams = message.exec.container, message.exec.streams
        return sessions.Exec(
            container=container,
            argv=argv,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            tty=streams.tty,
        )
    if kind == "attach":
        container, streams = message.attach.container, message.attach.streams
        return sessions.Attach(
            container=container,
            stdin=streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            tty=streams.tty,
        )
    if kind == "forward":
        return sessions.Forward(port=message.forward.port)
    return None


def event_message(event: sessions.Event) -> link_pb2.FromAgent:
    """What tells the kubelet of an event."""
    match event:
        case sessions.Data():
            return link_pb2.FromAgent(data=link_pb2.Data(channel=event.channel, data=event.data))
        case sessions.Closed():
            return link_pb2.FromAgent(closed=link_pb2.Closed(channel=event.channel))
        case sessions.Ended():
            ended = link_pb2.Ended(exit_code=event.exit_code, error=event.error, reason=event.reason)
            return link_pb2.FromAgent(ended=ended)
        case _:
            assert_never(event)


def event(message: link_pb2.FromAgent) -> sessions.Event | None:
    """What the kubelet is told; None for what it does not know."""
    kind = message.WhichOneof("kind")
    if kind == "data":
        return sessions.Data(message.data.channel, message.data.data)
    if kind == "closed":
        return sessions.Closed(message.closed.channel)
    if kind == "ended":
        ended = message.ended
        exit_code = ended.exit_code if ended.HasField("exit_code") else None
        return sessions.Ended(exit_code=exit_code, error=ended.error, reason=ended.reason)
    return None


def _streams(request: sessions.Exec | sessions.Attach) -> link_pb2.Streams:
    return link_pb2.Streams(stdin=request.stdin, stdout=request.stdout, stderr=request.stderr, tty=request.tty)
