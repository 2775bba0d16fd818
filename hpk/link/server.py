"""The kubelet's end of the link: receives the agents' reports and tells agents to end their pods."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import structlog

from hpk import aiotasks, errors
from hpk.link import client, doorbell, heap, kubelet_end, link_pb2, sessions, wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from hpk import records

log = structlog.get_logger(__name__)

START_PROTOCOL = 3  # the first with ephemeral containers
RENEW_PROTOCOL = 4  # the first that replaces the files of a volume
CHANGE_PROTOCOL = 5  # the first that changes the images of existing containers
OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.so_reuseport", 0),
    # For one agent: the Attach stream, its sessions, and those that are about to end.
    ("grpc.max_concurrent_streams", kubelet_end.MOST_FOR_POD + 64),
    client.FIXED_WINDOW,
    client.LARGE_FRAMES,
    # Two pieces: one is in transit while the other is processed.
    ("grpc.http2.lookahead_bytes", 2 * sessions.CHUNK),
)


class LinkServer:
    """Serves all agents on one port."""

    def __init__(
        self,
        *,
        ca: bytes,
        certificate: bytes,
        key: bytes,
        on_report: Callable[[str, records.Report], Awaitable[None]],
        on_connected: Callable[[str], Awaitable[None]],
        on_disconnected: Callable[[str], Awaitable[None]],
        host: str = "0.0.0.0",  # noqa: S104 - agents come from every compute node; both ends show certificates
        port: int = 0,
        bell: doorbell.Doorbell | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Prepare a server; nothing is opened yet.

        `ca` is the PEM of the agents' authority; `certificate` is for :data:`wire.SERVER_NAME`. `on_report` is called
        with each report, one at a time for each pod, and acknowledged when it returns; `on_connected` when a pod's
        agent has said hello; `on_disconnected` when a pod has no agent connected any more. `port` 0 chooses a free one.
        `bell` listens on the same UDP port for pods that end before they dial. `clock` returns Unix time, which agents
        receive.
        """
        self._clock = clock
        self._credentials = grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=True)
        self._on_report = on_report
        self._on_connected = on_connected
        self._on_disconnected = on_disconnected
        self._address = f"{host}:{port}"
        self._streams: dict[str, kubelet_end.AgentStream] = {}
        self._sessions = kubelet_end.KubeletSessions(self._streams)
        self._server: grpc.aio.Server | None = None
        self._host, self._bell = host, bell

    @property
    def connected(self) -> frozenset[str]:
        """The UIDs of the pods whose agents are connected."""
        return frozenset(self._streams)

    async def start(self) -> int:
        """Listen, and return the port.

        Raises:
            RuntimeError: The port is taken.
        """
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((_handlers(self._attach, self._session),))
        port: int = server.add_secure_port(self._address, self._credentials)
        await server.start()
        self._server = server
        if self._bell:
            try:
                await self._bell.listen(port)
            except OSError as error:
                log.warning("Cannot listen for datagrams; short pods take longer", port=port, error=str(error))
        return port

    async def stop(self, *, grace_seconds: float = 1.0) -> None:
        """End all streams; the agents continue without us."""
        self._sessions.close()
        if self._bell:
            self._bell.close()
        for stream in self._streams.values():
            stream.put(None)
        if self._server:
            await self._server.stop(grace_seconds)

    def terminate(self, uid: str, *, grace_seconds: float, reason: str = "Deleted", message: str = "") -> bool:
        """Tell a pod's agent to end the pod, perhaps again with a shorter grace; return whether it is connected."""
        stream = self._streams.get(uid)
        request = link_pb2.Terminate(grace_seconds=grace_seconds, reason=reason, message=message)
        return stream is not None and stream.put(link_pb2.KubeletMessage(terminate=request))

    def start_container(self, uid: str, plan: records.ContainerPlan) -> None:
        """Tell a pod's agent to start an ephemeral container, or to give another a new image; may be repeated.

        Raises:
            errors.AgentUnavailable: The agent is not connected, does not read, or is too old.
        """
        stream = self._streams.get(uid)
        if stream is None:
            raise errors.AgentUnavailable("the pod's agent is not connected now")
        is_ephemeral = plan["kind"] == "ephemeral"
        if stream.hello.protocol < (START_PROTOCOL if is_ephemeral else CHANGE_PROTOCOL):
            version = stream.hello.agent_version
            what = "ephemeral containers" if is_ephemeral else "changes of running pods' images"
            raise errors.AgentUnavailable(
                f"the pod's agent is of version {version}, from before {what}; recreate the pod"
            )
        if not stream.put(link_pb2.KubeletMessage(start=link_pb2.Start(json=_json(plan)))):
            raise errors.AgentUnavailable("the pod's agent does not read")

    def renew(self, uid: str, volumes: list[records.Volume]) -> bool:
        """Tell a pod's agent to replace the files of volumes; return whether it is connected and recent enough."""
        stream = self._streams.get(uid)
        if stream is None or stream.hello.protocol < RENEW_PROTOCOL:
            return False
        return stream.put(link_pb2.KubeletMessage(renew=link_pb2.Renew(json=_json(volumes))))

    async def open(self, uid: str, request: sessions.Request) -> sessions.Session:
        """Open a session in a pod (see :class:`sessions.SessionOpener`).

        Raises:
            errors.AgentUnavailable: The agent is not connected, is too old, or does not answer.
        """
        heap.keep_what_is_freed()
        return await self._sessions.open(uid, request)

    async def _session(self, _requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        names = context.auth_context().get("x509_common_name", [])
        await self._sessions.serve(context, names[0].decode() if names else "")

    async def _attach(
        self, requests: AsyncIterator[link_pb2.AgentMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[link_pb2.KubeletMessage]:
        hello = await self._greet(requests, context)
        uid = hello.uid
        stream = kubelet_end.AgentStream(hello)
        if old := self._streams.get(uid):
            old.put(None)  # the agent redialled before its old stream was known to be dead
        self._streams[uid] = stream
        self._sessions.meet()
        stream.put(link_pb2.KubeletMessage(welcome=link_pb2.Welcome(protocol=client.PROTOCOL, now=self._clock())))
        listening: asyncio.Task[None] | None = None
        try:
            await self._on_connected(uid)
            listening = asyncio.create_task(self._listen(uid, stream, requests), name=f"link {uid}")
            while (message := await stream.outbox.get()) is not None:
                yield message
        finally:
            if listening:
                await aiotasks.cancel(listening)
            if self._streams.get(uid) is stream:
                del self._streams[uid]
                self._sessions.lose(uid)
                await self._on_disconnected(uid)

    async def _greet(
        self, requests: AsyncIterator[link_pb2.AgentMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> link_pb2.Hello:
        """Return the agent's hello, if its UID is the certificate's."""
        names = context.auth_context().get("x509_common_name", [])
        first = await anext(requests, None)
        if first is None or first.WhichOneof("kind") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")
            raise AssertionError("abort does not return")
        if [first.hello.uid.encode()] != list(names):
            log.warning("Cannot accept an agent: its certificate belongs to another pod", uid=first.hello.uid)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate belongs to another pod")
        return first.hello

    async def _listen(
        self, uid: str, stream: kubelet_end.AgentStream, requests: AsyncIterator[link_pb2.AgentMessage]
    ) -> None:
        """Process reports until the agent disconnects; a report that cannot be handled must not end the kubelet."""
        try:
            async for message in requests:
                if message.WhichOneof("kind") != "report":
                    continue
                sequence = message.report.sequence
                # A message of an older agent may hold a secret's bytes.
                await self._on_report(uid, json.loads(message.report.json.decode("utf-8", "replace")))
                if not stream.put(link_pb2.KubeletMessage(received=link_pb2.Received(sequence=sequence))):
                    return
        except grpc.RpcError:
            return
        except Exception:
            log.exception("Cannot handle a report", uid=uid, job=stream.hello.job_id)
        finally:
            stream.put(None)


def _json(value: Any) -> bytes:
    # surrogateescape: values of the environment are bytes
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")


def _handlers(
    attach: Callable[..., AsyncIterator[link_pb2.KubeletMessage]], session: Callable[..., Awaitable[None]]
) -> grpc.GenericRpcHandler:
    """Return the service of link.proto; sessions have their own codec."""
    calls = {
        "Attach": grpc.stream_stream_rpc_method_handler(
            attach,
            request_deserializer=link_pb2.AgentMessage.FromString,
            response_serializer=link_pb2.KubeletMessage.SerializeToString,
        ),
        "Session": grpc.stream_stream_rpc_method_handler(
            session, request_deserializer=wire.FROM_AGENT.load, response_serializer=wire.TO_AGENT.dump
        ),
    }
    return grpc.method_handlers_generic_handler(wire.SERVICE, calls)
