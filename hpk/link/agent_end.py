"""The agent's end of sessions: dials a call for each session that the kubelet requests, and has the agent serve it."""

from __future__ import annotations

import asyncio
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from hpk import aiotasks
from hpk.link import heap, link_pb2, sessions, wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

MOST = 512
"""Sessions at a time; the kubelet requests fewer, unless its counting fails."""
_MOST_ON_THE_WAY = 8 << 20
"""Bytes that all sessions together may hold for clients that do not read: it is the pod's memory."""
_LEAST_PIECE = 16 << 10


@dataclass(frozen=True)
class Resize:
    """The size of the client's terminal, in characters."""

    width: int
    height: int


class AgentSession:
    """The agent's end of one session.

    When the client is gone, the task that serves the session is cancelled. Reads and writes are separate tasks, so that
    one may be cancelled alone: gRPC would end the whole call. All sending methods raise Gone if the client is gone.
    """

    def __init__(self, call: Any, *, piece_bytes: Callable[[], int]) -> None:
        self._call = call
        self._piece_bytes = piece_bytes
        self._reading: asyncio.Task[sessions.Data | sessions.Closed | Resize | None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    @property
    def piece_bytes(self) -> int:
        """Bytes to send at a time; fewer if there are many sessions."""
        return self._piece_bytes()

    async def receive(self) -> sessions.Data | sessions.Closed | Resize | None:
        """Return the client's next event; None if no more can come."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="session read")
        event = await asyncio.shield(self._reading)
        self._reading = None
        return event

    async def send(self, channel: int, data: bytes) -> None:
        """Send data, at most ``sessions.CHUNK``, waiting for room."""
        await self._say(sessions.Data(channel, data))

    async def close(self, channel: int) -> None:
        """Close this channel for further data."""
        await self._say(sessions.Closed(channel))

    async def end(self, ended: sessions.Ended) -> None:
        """Send the last event."""
        await self._say(ended)

    async def _say(self, event: sessions.Event) -> None:
        async with self._turn:
            if self._writing:  # its sender was cancelled
                await asyncio.wait({self._writing})
            self._writing = asyncio.create_task(self._call.write(wire.from_agent(event)), name="session write")
            try:
                await asyncio.shield(self._writing)
            except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError) as error:
                raise Gone from error

    async def _read(self) -> sessions.Data | sessions.Closed | Resize | None:
        try:
            while isinstance(message := await self._call.read(), sessions.Data | link_pb2.ToAgent):
                if (found := wire.channel_event(message)) is not None:
                    return found
                if isinstance(message, link_pb2.ToAgent) and message.WhichOneof("kind") == "resize":
                    return Resize(message.resize.width, message.resize.height)
        except (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError, asyncio.CancelledError):
            pass  # gRPC's ways to say that the call is over
        return None


class Gone(Exception):
    """The client is gone, or the kubelet on the way to it."""


class AgentSessions:
    """The agent's ends of all sessions of its connection."""

    def __init__(self, serve: Callable[[sessions.Request, AgentSession], Awaitable[sessions.Ended]]) -> None:
        """Keep the function that serves a session and returns how it ended; it is cancelled when the client is gone."""
        self._serve = serve
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def open(self, dial: Callable[[], Any], opening: link_pb2.Open) -> None:
        """Start the session that the kubelet requests, over a call that `dial` makes."""
        heap.keep_what_is_freed()
        task = asyncio.create_task(self._run(dial, opening), name=f"session {opening.session}")
        self._tasks[opening.session] = task
        task.add_done_callback(lambda _: self._tasks.pop(opening.session, None))

    def abandon(self, session: str) -> None:
        """Cancel a session: its client is gone."""
        if task := self._tasks.get(session):
            task.cancel()

    async def idle(self) -> None:
        """Wait until no session is left: the clients have read how theirs ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks.values()))

    async def close(self) -> None:
        """Cancel all sessions: the connection is lost."""
        await aiotasks.cancel(*self._tasks.values())

    async def _run(self, dial: Callable[[], Any], opening: link_pb2.Open) -> None:
        call = dial()
        gone = asyncio.Event()
        call.add_done_callback(lambda _: gone.set())
        waiting = asyncio.create_task(gone.wait())
        work = asyncio.create_task(self._work(call, opening, AgentSession(call, piece_bytes=self._piece_bytes)))
        try:
            await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                await waiting  # until the kubelet has read all
        finally:
            await aiotasks.cancel(work, waiting)
            call.cancel()

    def _piece_bytes(self) -> int:
        return max(_LEAST_PIECE, min(sessions.CHUNK, _MOST_ON_THE_WAY // max(1, len(self._tasks))))

    async def _work(self, call: Any, opening: link_pb2.Open, session: AgentSession) -> None:
        try:
            await call.write(link_pb2.FromAgent(session=opening.session))
            await session.end(await self._ended(opening, session))
        except (Gone, grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError):
            call.cancel()

    async def _ended(self, opening: link_pb2.Open, session: AgentSession) -> sessions.Ended:
        request = wire.request(opening)
        if request is None:
            return sessions.Ended(error="the pod's agent is older than this kind of session", reason="NotSupported")
        if len(self._tasks) > MOST:
            return sessions.Ended(error="the pod has too many sessions", reason="TooManySessions")
        try:
            return await self._serve(request, session)
        except Gone:
            raise
        except Exception as error:  # noqa: BLE001 - a failed session must not end the pod
            traceback.print_exc(file=sys.stdout)  # the job's output is the log
            return sessions.Ended(error=f"the pod's agent failed: {error}", reason="InternalError")
