"""A client for the calls of etcd's API that maintenance needs: gRPC on loopback, with a client certificate.

gRPC is imported late, since the import takes 0.1 s and etcd must start before.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.controlplane import etcd

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from hpk.controlplane import etcd_api_pb2 as api
    from hpk.controlplane.layout import Layout

CALL_SECONDS = 60.0
"""Long enough for defragmentation, which reads and writes the whole database."""
MAINTENANCE = "/etcdserverpb.Maintenance/"


class EtcdClient:
    """A connection to etcd."""

    def __init__(self, channel: Any) -> None:
        from hpk.controlplane import etcd_api_pb2  # noqa: PLC0415 - see above

        self._channel = channel
        self._api = etcd_api_pb2

    async def status(self) -> api.StatusResponse:
        """Return the database's size and the current revision.

        Raises:
            errors.Retryable: etcd does not answer (also raised by the methods below).
        """
        found: api.StatusResponse = await self._call(
            f"{MAINTENANCE}Status", self._api.Empty(), self._api.StatusResponse
        )
        return found

    async def has_no_space(self) -> bool:
        """Return whether etcd refuses writes because its database has reached the quota."""
        return bool(await self._alarms())

    async def disarm(self) -> None:
        """Disarm the alarm, so that etcd accepts writes again."""
        for member in await self._alarms():
            # An alarm belongs to a member: without its ID none is disarmed.
            await self._alarm(action=self._api.AlarmRequest.DEACTIVATE, memberID=member)

    async def _alarms(self) -> list[int]:
        """Return the members that have raised the alarm."""
        found = await self._alarm(action=self._api.AlarmRequest.GET)
        return [member.memberID for member in found.alarms if member.alarm == self._api.NOSPACE]

    async def _alarm(self, **fields: Any) -> Any:
        request = self._api.AlarmRequest(alarm=self._api.NOSPACE, **fields)
        return await self._call(f"{MAINTENANCE}Alarm", request, self._api.AlarmResponse)

    async def defragment(self) -> None:
        """Shrink the database's file to its contents; etcd answers nobody meanwhile."""
        await self._call(f"{MAINTENANCE}Defragment", self._api.Empty(), self._api.Empty)

    async def compact(self, revision: int) -> None:
        """Drop the object history before this revision; do nothing if that was done."""
        request = self._api.CompactionRequest(revision=revision, physical=True)
        with contextlib.suppress(errors.Conflict):
            await self._call("/etcdserverpb.KV/Compact", request, self._api.Empty)

    async def snapshot(self) -> AsyncIterator[bytes]:
        """Yield a consistent copy of the database, followed by its checksum."""
        call = self._channel.unary_stream(f"{MAINTENANCE}Snapshot", **_coding(self._api.SnapshotResponse))
        with _translated():
            async for part in call(self._api.Empty(), timeout=CALL_SECONDS):
                yield part.blob

    async def _call(self, method: str, request: Any, answer: type[Any]) -> Any:
        call = self._channel.unary_unary(method, **_coding(answer))
        with _translated():
            return await call(request, timeout=CALL_SECONDS)


@contextlib.asynccontextmanager
async def connected(layout: Layout) -> AsyncIterator[EtcdClient]:
    """Connect with the control plane's certificate."""
    import grpc  # noqa: PLC0415 - see above
    import grpc.aio  # noqa: PLC0415

    def read() -> tuple[bytes, bytes, bytes]:
        authority, key, certificate = layout.authority_certificate("etcd"), layout.key(etcd.CLIENT), etcd.CLIENT
        return authority.read_bytes(), key.read_bytes(), layout.certificate(certificate).read_bytes()

    authority, key, certificate = await asyncio.to_thread(read)
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    target = layout.etcd_url.removeprefix("https://")
    options = [("grpc.enable_http_proxy", 0)]
    async with grpc.aio.secure_channel(target, credentials, options=options) as channel:
        yield EtcdClient(channel)


def _coding(answer: Any) -> dict[str, Any]:
    return {
        "request_serializer": lambda message: message.SerializeToString(),
        "response_deserializer": answer.FromString,
    }


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Map gRPC's errors to ours."""
    import grpc  # noqa: PLC0415 - see above
    import grpc.aio  # noqa: PLC0415

    try:
        yield
    except grpc.aio.AioRpcError as error:
        why = f"{error.code().name}: {error.details()}"
        if error.code() is grpc.StatusCode.OUT_OF_RANGE:
            raise errors.Conflict(f"etcd refuses: {why}") from error
        raise errors.Retryable(f"etcd does not answer: {why}") from error
