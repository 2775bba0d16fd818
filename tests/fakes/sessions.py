"""Sessions into pods without pods: a test plays the agent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hpk.link import sessions

if TYPE_CHECKING:
    from hpk import errors


class FakeSession:
    """A :class:`hpk.link.sessions.Session` whose other end is the test.

    Attributes:
        request: What was asked for.
        sent: What the client sent, by channel.
        heard: Set whenever the client sends or closes something.
        closed: The channels that the client has closed.
        sizes: The terminal's sizes.
        aborted: Set when the session was given up, or is over.
        may_send: Cleared by a test that takes nothing.
    """

    def __init__(self, request: sessions.Request) -> None:
        self.request = request
        self.events: asyncio.Queue[sessions.Event] = asyncio.Queue(4)
        self.sent: dict[int, bytearray] = {}
        self.closed: set[int] = set()
        self.sizes: list[tuple[int, int]] = []
        self.heard, self.aborted, self.may_send = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_send.set()
        self.has_ended = False

    async def receive(self) -> sessions.Event:
        assert not self.has_ended, "nobody asks after the end"
        event = await self.events.get()
        self.has_ended = isinstance(event, sessions.Ended)
        return event

    async def send(self, channel: int, data: bytes) -> None:
        assert data
        await self.may_send.wait()
        self.sent.setdefault(channel, bytearray()).extend(data)
        self.heard.set()

    async def close(self, channel: int) -> None:
        self.closed.add(channel)
        self.heard.set()

    async def resize(self, *, width: int, height: int) -> None:
        self.sizes.append((width, height))
        self.heard.set()

    async def abort(self) -> None:
        self.aborted.set()

    async def say(self, *events: sessions.Event) -> None:
        """Send events to the client, waiting for room."""
        for event in events:
            await self.events.put(event)

    async def until_sent(self, channel: int, count: int) -> bytes:
        """What the client sent on a channel, when there are so many bytes of it."""
        while len(self.sent.get(channel, b"")) < count:
            self.heard.clear()
            await self.heard.wait()
        return bytes(self.sent[channel])

    async def until_closed(self, channel: int) -> None:
        """Return when the client has closed the channel."""
        while channel not in self.closed:
            self.heard.clear()
            await self.heard.wait()


class FakeOpener:
    """A :class:`hpk.link.sessions.SessionOpener`.

    Attributes:
        opened: The sessions, in the order in which they were opened.
        error: Raised instead of opening one, if a test sets it.
        uids: The pods that they were opened in.
    """

    def __init__(self) -> None:
        self.opened: asyncio.Queue[FakeSession] = asyncio.Queue()
        self.error: errors.HpkError | None = None
        self.uids: list[str] = []

    async def open(self, uid: str, request: sessions.Request) -> FakeSession:
        if self.error is not None:
            raise self.error
        self.uids.append(uid)
        session = FakeSession(request)
        self.opened.put_nowait(session)
        return session
