"""Maintenance of etcd: defragments its database, and recovers it when it is full.

The API server drops old revisions every five minutes, but the file never shrinks by itself. Once it has reached its
quota, etcd raises the alarm NOSPACE and refuses writes until somebody compacts, defragments and disarms
(https://etcd.io/docs/latest/op-guide/maintenance/). The API server's own compaction cannot: it begins with a write.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn

import structlog

from hpk import errors
from hpk.controlplane import etcd_client

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout
    from hpk.controlplane.troubles import Troubles

LOOK_SECONDS = 30.0
SMALL_BYTES = 64 << 20
"""Below this size, defragmentation is not worth the moment without answers."""
FULL = 0.8
"""Share of the quota above which the file is kept as small as possible, and the user is warned."""
WORTHWHILE = 0.02
"""Share of a full file that defragmentation must free: for less, reads must not stop every half minute while the user
deletes objects."""
TROUBLE = "etcd"

logger = structlog.get_logger(__name__)
Step = Literal["nothing", "defragment", "relieve"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the database, in bytes.

    Attributes:
        total: The size of its file.
        used: What would remain after defragmentation.
        quota: The size at which etcd refuses writes; 0 if unknown.
        is_refusing: Whether it refuses them now.
    """

    total: int
    used: int
    quota: int
    is_refusing: bool = False


def step(size: Size) -> Step:
    """Return the next step. Pure."""
    if size.is_refusing:
        return "relieve"
    spare = size.total - size.used
    if size.total > SMALL_BYTES and spare > size.total / 2:
        return "defragment"
    if size.quota and size.total > FULL * size.quota and spare > size.total / 10:
        return "defragment"
    return "nothing"


def trouble(size: Size) -> str:
    """Return the warning for the user; empty if there is none."""
    how = "delete objects that nobody needs, such as finished Jobs, old ReplicaSets, events, large ConfigMaps"
    room = f"etcd's database holds {size.used >> 20} MB of at most {size.quota >> 20} MB"
    if size.is_refusing:
        return f"the cluster accepts no changes: {room}; {how}"
    if size.quota and size.used > FULL * size.quota:
        return f"{room}, and accepts no changes beyond that: {how}"
    return ""


async def run(layout: Layout, ready: asyncio.Event, troubles: Troubles) -> NoReturn:
    """Maintain etcd until cancelled."""
    await ready.wait()
    async with etcd_client.connected(layout) as client:
        while True:
            try:
                troubles.tell(TROUBLE, await look_after(client))
            except errors.Retryable as error:  # the supervisor restarts etcd and reports it
                logger.debug("Cannot look after etcd", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)


async def look_after(client: etcd_client.EtcdClient) -> str:
    """Perform the next step, and return the warning for the user.

    Raises:
        errors.Retryable: etcd does not answer.
    """
    size, revision = await _look(client)
    what = step(size)
    if what == "nothing":
        return trouble(size)
    if what == "relieve":
        # etcd counts pages freed by one compaction only when the next is written (bbolt's Tx.close; backend.begin).
        await client.compact(revision - 1)
        await client.compact(revision)
        size, _ = await _look(client)
    if what == "defragment" or size.total - size.used > size.total * WORTHWHILE:
        logger.warning("Making etcd's database smaller", why=what, megabytes=size.total >> 20, used=size.used >> 20)
        await client.defragment()
        size, _ = await _look(client)
        logger.info("Made etcd's database smaller", megabytes=size.total >> 20, used=size.used >> 20)
    if what == "relieve" and (size.total < size.quota or not size.quota):
        await client.disarm()
        size, _ = await _look(client)
    return trouble(size)


async def _look(client: etcd_client.EtcdClient) -> tuple[Size, int]:
    found = await client.status()
    is_refusing = await client.has_no_space()
    size = Size(total=found.dbSize, used=found.dbSizeInUse, quota=found.dbSizeQuota, is_refusing=is_refusing)
    return size, found.header.revision
