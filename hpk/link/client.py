"""The agent's end of the link: dials the kubelet, and redials without end."""

from __future__ import annotations

import asyncio
import json
import random
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from hpk import aiotasks, jobdir
from hpk.link import agent_end, link_pb2, link_pb2_grpc, sessions, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hpk import records

PROTOCOL = 5
FIXED_WINDOW = ("grpc.http2.bdp_probe", 0)
"""A fixed flow-control window: with gRPC's estimate each unread session would grow to many megabytes."""
LARGE_FRAMES = ("grpc.http2.max_frame_size", 1 << 20)
"""A piece of a session in one HTTP/2 frame instead of 32: a seventh less CPU time on each end."""
OPTIONS = (
    ("grpc.ssl_target_name_override", wire.SERVER_NAME),
    # To notice within half a minute that a compute node vanished or a control plane moved.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.max_send_message_length", 16 << 20),
    ("grpc.enable_http_proxy", 0),
    FIXED_WINDOW,
    LARGE_FRAMES,
    ("grpc.http2.lookahead_bytes", 512 << 10),
)
FIRST_PAUSE_SECONDS = 0.2
MOST_PAUSE_SECONDS = 15.0
LEAST_SKEW_SECONDS = 2.0
"""A smaller difference between two clocks is ignored: times are reported in whole seconds."""


@dataclass(frozen=True, kw_only=True)
class Terminate:
    """The kubelet's request to end the pod."""

    grace_seconds: float
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Agent:
    """The agent, as it presents itself to the kubelet.

    Attributes:
        uid: The pod's UID, which is the certificate's common name.
        ca: The kubelet's authority; this, the certificate and the key are PEM.
        endpoint_file: Holds the kubelet's address; read again before each attempt.
    """

    uid: str
    job_id: str
    version: str
    ca: bytes
    certificate: bytes
    key: bytes
    endpoint_file: str


@dataclass(frozen=True, kw_only=True)
class Handlers:
    """The agent's functions for the kubelet's requests, called in the event loop.

    Attributes:
        terminate: Ends the pod.
        serve: Serves a session, in a task that is cancelled when its client is gone.
        start: Starts an ephemeral container, or gives another container a new image; may be called repeatedly.
        renew: Replaces the files of volumes.
        set_clock: Takes at each welcome the seconds that our clock is ahead of the kubelet's. Returns whether a report
            that accounts for this will be published, so that the current one need not be sent.
    """

    terminate: Callable[[Terminate], None]
    serve: Callable[[sessions.Request, agent_end.AgentSession], Awaitable[sessions.Ended]]
    start: Callable[[records.ContainerPlan], None]
    renew: Callable[[list[records.Volume]], None]
    set_clock: Callable[[float], bool]


class LinkClient:
    """Sends the kubelet the newest report; older ones do not matter."""

    def __init__(self, agent: Agent, handlers: Handlers, *, clock: Callable[[], float] = time.time) -> None:
        """Prepare a client; nothing is opened yet. `clock` returns Unix time."""
        self._handlers, self._clock = handlers, clock
        self._asked_at = 0.0
        self._hello = link_pb2.Hello(protocol=PROTOCOL, uid=agent.uid, agent_version=agent.version, job_id=agent.job_id)
        self._endpoint_file = agent.endpoint_file
        self._credentials = grpc.ssl_channel_credentials(agent.ca, agent.key, agent.certificate)
        self._sessions = agent_end.AgentSessions(handlers.serve)
        self._newest: tuple[int, bytes] | None = None
        self._news = asyncio.Event()
        self.is_connected = False
        """Whether the kubelet has welcomed us on a stream that is still open."""
        self._acknowledged = 0
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to dial, until :meth:`close`."""
        self._task = asyncio.create_task(self._run(), name="link client")

    async def close(self) -> None:
        """Stop and disconnect."""
        if self._task:
            await aiotasks.cancel(self._task)

    def publish(self, sequence: int, data: bytes) -> None:
        """Send a report to the kubelet, now or when it can be reached."""
        self._newest = (sequence, data)
        self._news.set()

    async def acknowledged(self, sequence: int) -> None:
        """Wait until the kubelet has processed this report."""
        while self._acknowledged < sequence:
            self._heard.clear()
            await self._heard.wait()

    async def idle(self) -> None:
        """Wait until no session is left."""
        await self._sessions.idle()

    async def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                endpoint = await self._endpoint()
                if endpoint and await self._attach(f"{endpoint['host']}:{endpoint['port']}"):
                    pause = FIRST_PAUSE_SECONDS
            except (OSError, ValueError, KeyError, grpc.RpcError):
                pass  # the kubelet is away, or is writing its address
            except Exception:  # noqa: BLE001 - an agent that stops dialling cannot be reached
                print(f"Cannot talk to the kubelet, will try again:\n{traceback.format_exc()}", flush=True)  # noqa: T201 - the job's output is the log
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads agents, protects nothing
            pause = min(pause * 2, MOST_PAUSE_SECONDS)

    async def _endpoint(self) -> dict[str, Any] | None:
        """Return the kubelet's endpoint, read in a thread so that a home that hangs blocks only the link."""
        try:
            found: dict[str, Any] | None = await asyncio.to_thread(jobdir.read_json, self._endpoint_file)
        except RuntimeError:  # no thread can be started: the pod uses all
            found = jobdir.read_json(self._endpoint_file)
        return found

    async def _attach(self, target: str) -> bool:
        """Communicate until the stream breaks; return whether the kubelet had welcomed us."""
        was_welcome = False
        async with grpc.aio.secure_channel(target, self._credentials, options=OPTIONS) as channel:
            welcomed = asyncio.Event()
            call = link_pb2_grpc.LinkStub(channel).Attach(self._messages(welcomed))
            dial = channel.stream_stream(
                wire.SESSION, request_serializer=wire.FROM_AGENT.dump, response_deserializer=wire.TO_AGENT.load
            )
            try:
                async for message in call:
                    was_welcome = self.is_connected = True
                    self._hear(message, dial)
                    welcomed.set()
            except grpc.RpcError:
                pass
            finally:
                self.is_connected = False
                await self._sessions.close()
        return was_welcome

    async def _messages(self, welcomed: asyncio.Event) -> AsyncIterator[link_pb2.AgentMessage]:
        self._asked_at = self._clock()
        yield link_pb2.AgentMessage(hello=self._hello)
        await welcomed.wait()
        sent = 0
        while True:
            self._news.clear()
            if self._newest and self._newest[0] != sent:
                sent, data = self._newest
                yield link_pb2.AgentMessage(report=link_pb2.Report(sequence=sent, json=data))
                continue
            await self._news.wait()

    def _hear(self, message: link_pb2.KubeletMessage, dial: Callable[[], Any]) -> None:
        kind = message.WhichOneof("kind")
        if kind == "welcome":
            now = message.welcome.now
            if now and self._handlers.set_clock(ahead_seconds(now, asked_at=self._asked_at, heard_at=self._clock())):
                self._newest = None
        elif kind == "received":
            self._acknowledged = max(self._acknowledged, message.received.sequence)
            self._heard.set()
        elif kind == "terminate":
            request = message.terminate
            self._handlers.terminate(
                Terminate(grace_seconds=request.grace_seconds, reason=request.reason, message=request.message)
            )
        elif kind == "start":
            self._handlers.start(_loads(message.start.json))
        elif kind == "renew":
            self._handlers.renew(_loads(message.renew.json))
        elif kind == "open":
            self._sessions.open(dial, message.open)
        elif kind == "abandon":
            self._sessions.abandon(message.abandon.session)


def _loads(data: bytes) -> Any:
    # surrogateescape: values of the environment are bytes
    return json.loads(data.decode("utf-8", "surrogateescape"))


def ahead_seconds(now: float, *, asked_at: float, heard_at: float) -> float:
    """Return how far our clock is ahead of one that was read during our request; 0 if the two may be equal."""
    least_ahead, most_ahead = asked_at - now, heard_at - now
    is_certain = least_ahead >= LEAST_SKEW_SECONDS or most_ahead <= -LEAST_SKEW_SECONDS
    return most_ahead if is_certain else 0.0  # the request may include connecting; the response is quick
