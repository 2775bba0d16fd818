"""The kubelet's end of sessions: requests them from agents, and holds each until one side ends it.

The agent answers an Open by dialling the Session call, so every session is an HTTP/2 stream with its own flow control.
A session with a client that does not read holds at most one unread message and the stream's window; a slow program in
the pod delays only its own input.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from hpk import errors
from hpk.link import link_pb2, sessions, wire

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ARRIVAL_SECONDS = 10.0
"""Wait for an agent that is not connected: its report's file may say that a container runs before the agent of a busy
node has connected, and agents redial when a kubelet is back.
"""
ANSWER_SECONDS = 30.0
"""Time for an agent to dial back; its pod may keep all cores of its job busy."""
MOST_FOR_POD = 256
"""Sessions of one pod at a time: its agent has few descriptors and needs a process for each."""
MOST = 512
"""Sessions of all pods at a time: each may hold two megabytes of the control plane's memory."""
MOST_MESSAGES = 2 * MOST_FOR_POD + 16
"""Messages that may wait for one agent. More are refused, because it does not read; its next report ends its stream."""
NEEDED_PROTOCOL = 2
LOST = sessions.Ended(error="the connection to the pod's agent was lost", reason="LinkLost")


class AgentStream:
    """A connected agent: its Hello, and the messages that wait to be sent on its Attach stream."""

    def __init__(self, hello: link_pb2.Hello) -> None:
        self.hello = hello
        self.outbox: asyncio.Queue[link_pb2.KubeletMessage | None] = asyncio.Queue(MOST_MESSAGES)

    def put(self, message: link_pb2.KubeletMessage | None) -> bool:
        """Queue a message, or None to end the stream; return whether there was room."""
        if message is None and self.outbox.full():
            self.outbox.get_nowait()  # the end must not be lost
        try:
            self.outbox.put_nowait(message)
        except asyncio.QueueFull:
            return False
        return True


class KubeletSessions:
    """Opens sessions and takes agents' calls for them (see :class:`sessions.SessionOpener`)."""

    def __init__(self, streams: Mapping[str, AgentStream]) -> None:
        """Keep the connected agents by their pods' UIDs."""
        self._streams = streams
        self._waiting: dict[str, tuple[str, asyncio.Future[KubeletSession]]] = {}
        self._open: set[KubeletSession] = set()
        self._counts: dict[str, int] = {}
        self._arrival = asyncio.Event()

    async def open(self, uid: str, request: sessions.Request) -> KubeletSession:
        """Open a session in a pod.

        Raises:
            errors.AgentUnavailable: The agent is not connected, is too old, does not answer, or has too many sessions.
        """
        self._count(uid)
        name = secrets.token_hex(16)
        answer: asyncio.Future[KubeletSession] = asyncio.get_running_loop().create_future()
        self._waiting[name] = (uid, answer)
        stream = session = None
        try:
            stream = await self._ready_stream(uid)
            if not stream.put(link_pb2.KubeletMessage(open=wire.open_message(name, request))):
                raise errors.AgentUnavailable(f"Cannot open a session in pod {uid}: its agent does not read")
            async with asyncio.timeout(ANSWER_SECONDS):
                session = await answer
        except TimeoutError:
            text = f"Cannot open a session in pod {uid}: its agent did not answer in {ANSWER_SECONDS:g} s"
            raise errors.AgentUnavailable(text) from None
        finally:
            self._waiting.pop(name, None)
            if session is None and not self._is_taken(answer):
                self._forget(uid)
                _abandon(stream, name)
        return session

    @staticmethod
    def _is_taken(answer: asyncio.Future[KubeletSession]) -> bool:
        """Return whether the agent called although we were cancelled; if so, end its call, which counts itself off."""
        if not answer.done() or answer.cancelled() or answer.exception():
            return False
        answer.result().abort_now()
        return True

    def _count(self, uid: str) -> None:
        if self._counts.get(uid, 0) >= MOST_FOR_POD or sum(self._counts.values()) >= MOST:
            raise errors.AgentUnavailable(f"Cannot open a session in pod {uid}: too many sessions; close some first")
        self._counts[uid] = self._counts.get(uid, 0) + 1

    async def _ready_stream(self, uid: str) -> AgentStream:
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while (stream := self._streams.get(uid)) is None:
                    await self._arrival.wait()
        except TimeoutError:
            text = f"Cannot open a session in pod {uid}: its agent is not connected now"
            raise errors.AgentUnavailable(text) from None
        if stream.hello.protocol < NEEDED_PROTOCOL:
            version = stream.hello.agent_version
            raise errors.AgentUnavailable(
                f"Cannot open a session in pod {uid}: its agent is of version {version}, from before exec, attach and "
                "port-forward; recreate the pod"
            )
        return stream

    def meet(self) -> None:
        """Wake up callers that wait for an agent: one has connected."""
        self._arrival.set()
        self._arrival = asyncio.Event()

    def lose(self, uid: str) -> None:
        """Fail the requests to an agent that has disconnected."""
        for owner, answer in list(self._waiting.values()):
            if owner == uid and not answer.done():
                text = f"Cannot open a session in pod {uid}: the connection to its agent was lost"
                answer.set_exception(errors.AgentUnavailable(text))

    def close(self) -> None:
        """End all sessions before the kubelet exits."""
        for session in self._open:
            session.lose()

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any], uid: str) -> None:
        """Serve an agent's Session call until either side ends it; the UID is from its certificate."""
        first = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                first = await context.read()
        name = first.session if isinstance(first, link_pb2.FromAgent) else ""
        owner, answer = self._waiting.get(name, ("", None))
        if answer is None or answer.done() or owner != uid:
            # It may have come too late.
            await context.abort(grpc.StatusCode.NOT_FOUND, "this session was not requested")
            raise AssertionError("abort does not return")
        stream = self._streams.get(uid)
        session = KubeletSession(context, abandon=lambda: _abandon(stream, name))
        self._open.add(session)
        answer.set_result(session)
        try:
            await session.over.wait()
        finally:
            self._open.discard(session)
            self._forget(uid)
            session.lose()

    def _forget(self, uid: str) -> None:
        self._counts[uid] -= 1
        if not self._counts[uid]:
            del self._counts[uid]


def _abandon(stream: AgentStream | None, name: str) -> None:
    if stream:
        stream.put(link_pb2.KubeletMessage(abandon=link_pb2.Abandon(session=name)))


class KubeletSession:
    """The kubelet's end of one session (see :class:`sessions.Session`); safe to cancel at any await."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any], *, abandon: Callable[[], None]) -> None:
        self._context = context
        self._abandon = abandon
        self._lost: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._reading: asyncio.Task[Any] | None = None
        self._writing: asyncio.Task[Any] | None = None
        self._turn = asyncio.Lock()
        self._closed: set[int] = set()
        self.over = asyncio.Event()
        """Set when nobody needs the call any more."""

    async def receive(self) -> sessions.Event:
        """Return the next event; must not be called again after ``Ended``."""
        if self._reading is None:
            # A separate task: gRPC loses a message if a read is cancelled.
            self._reading = asyncio.create_task(self._read(), name="session read")
        await asyncio.wait({self._reading, self._lost}, return_when=asyncio.FIRST_COMPLETED)
        event: sessions.Event = LOST
        if self._reading.done():
            event, self._reading = self._reading.result(), None
        if isinstance(event, sessions.Ended):
            self.over.set()
        return event

    async def send(self, channel: int, data: bytes) -> None:
        """Send data, waiting for room; drop it if the channel is closed or the session has ended."""
        for start in range(0, len(data), sessions.CHUNK):
            if channel in self._closed:
                return
            piece = data if len(data) <= sessions.CHUNK else data[start : start + sessions.CHUNK]
            await self._say(sessions.Data(channel, piece))

    async def close(self, channel: int) -> None:
        """Close this channel for further data."""
        if channel not in self._closed:
            self._closed.add(channel)
            await self._say(link_pb2.ToAgent(closed=link_pb2.Closed(channel=channel)))

    async def resize(self, *, width: int, height: int) -> None:
        """Set the terminal's size in characters."""
        await self._say(link_pb2.ToAgent(resize=link_pb2.Resize(width=width, height=height)))

    async def abort(self) -> None:
        """End the session and release all it holds."""
        self.abort_now()

    def abort_now(self) -> None:
        """End the session without waiting."""
        if not self.over.is_set():
            self._abandon()
            self.lose()

    def lose(self) -> None:
        """Wake up all waiting calls: the session is over."""
        self.over.set()
        if not self._lost.done():
            self._lost.set_result(None)

    async def _read(self) -> sessions.Event:
        try:
            while isinstance(message := await self._context.read(), sessions.Data | link_pb2.FromAgent):
                if (event := wire.event(message)) is not None:
                    return event
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.CancelledError):
            pass  # gRPC's ways to say that the call is over
        return LOST

    async def _say(self, message: sessions.Data | link_pb2.ToAgent) -> None:
        async with self._turn:
            if self._writing:  # its sender was cancelled
                await asyncio.wait({self._writing, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if self._lost.done() or self.over.is_set():
                return
            self._writing = asyncio.create_task(self._write(message), name="session write")
            await asyncio.wait({self._writing, self._lost}, return_when=asyncio.FIRST_COMPLETED)
            if self._writing.done():
                self._writing = None

    async def _write(self, message: sessions.Data | link_pb2.ToAgent) -> None:
        with contextlib.suppress(grpc.RpcError, grpc.aio.BaseError):
            await self._context.write(message)
