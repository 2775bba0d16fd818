"""Keeps etcd's database small, and mends it when it is full.

The API server drops old revisions every five minutes, but the file never shrinks by itself; and once it has reached its
quota, etcd raises the alarm NOSPACE and refuses all writes until somebody compacts, defragments and disarms
(https://etcd.io/docs/latest/op-guide/maintenance/).  The API server's own compaction cannot: it begins with a write.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol

import structlog

from hpk import errors
from hpk.controlplane import etcd_client

if TYPE_CHECKING:
    from hpk.controlplane.layout import Layout
    from hpk.controlplane.troubles import Troubles

LOOK_SECONDS = 30.0
SMALL_BYTES = 64 << 20
"""A smaller file is not worth the moment in which etcd answers nobody."""
FULL = 0.8
"""Of the quota: from here on the file is kept as small as possible, and what cannot shrink is told."""
WORTHWHILE = 0.02
"""Of the file, in one that is full: reading must not stop every half minute for less, while the user makes room."""
TROUBLE = "etcd"

logger = structlog.get_logger(__name__)
Step = Literal["nothing", "defragment", "relieve"]


class Etcd(Protocol):
    """The part of :class:`hpk.controlplane.etcd_client.Client` that is used here."""

    async def status(self) -> Status:
        """As there."""
        ...

    async def has_no_space(self) -> bool:
        """As there."""
        ...

    async def disarm(self) -> None:
        """As there."""
        ...

    async def defragment(self) -> None:
        """As there."""
        ...

    async def compact(self, revision: int) -> None:
        """As there."""
        ...


class Header(Protocol):
    """Of every answer."""

    revision: int


class Status(Protocol):
    """etcd's StatusResponse."""

    dbSize: int  # noqa: N815 - etcd's name
    dbSizeInUse: int  # noqa: N815
    dbSizeQuota: int  # noqa: N815

    @property
    def header(self) -> Header:
        """Of every answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the database is, in bytes.

    Attributes:
        total: Of its file.
        used: What would be left after defragmenting.
        quota: At which etcd refuses writes; 0 if it does not say.
        is_refusing: Whether it does.
    """

    total: int
    used: int
    quota: int
    is_refusing: bool = False


def step(size: Size) -> Step:
    """Return what is to be done; pure."""
    if size.is_refusing:
        return "relieve"
    spare = size.total - size.used
    if size.total > SMALL_BYTES and spare > size.total / 2:
        return "defragment"
    if size.quota and size.total > FULL * size.quota and spare > size.total / 10:
        return "defragment"
    return "nothing"


def trouble(size: Size) -> str:
    """Return what to tell the user; empty if nothing."""
    how = "delete objects that nobody needs, such as finished Jobs, old ReplicaSets, events, large ConfigMaps"
    room = f"etcd's database holds {size.used >> 20} MB of at most {size.quota >> 20} MB"
    if size.is_refusing:
        return f"the cluster takes no changes: {room}; {how}"
    if size.quota and size.used > FULL * size.quota:
        return f"{room}, and takes no changes beyond that: {how}"
    return ""


async def run(layout: Layout, ready: asyncio.Event, troubles: Troubles) -> NoReturn:
    """Look after etcd until cancelled."""
    await ready.wait()
    async with etcd_client.connected(layout) as client:
        while True:
            try:
                troubles.tell(TROUBLE, await look_after(client))
            except errors.Retryable as error:  # the supervisor starts it again, and says so
                logger.debug("Cannot look after etcd", error=str(error))
            await asyncio.sleep(LOOK_SECONDS)


async def look_after(client: Etcd) -> str:
    """Do what is to be done now, and return what the user must know.

    Raises:
        errors.Retryable: etcd does not answer.
    """
    size, revision = await _look(client)
    what = step(size)
    if what == "nothing":
        return trouble(size)
    if what == "relieve":
        # etcd counts the pages that one has freed when the next is written down (bbolt's Tx.close; backend.begin).
        await client.compact(revision - 1)
        await client.compact(revision)
        size, _ = await _look(client)
    if what == "defragment" or size.total - size.used > size.total * WORTHWHILE:
        logger.warning("etcd's database is made smaller", why=what, megabytes=size.total >> 20, used=size.used >> 20)
        await client.defragment()
        size, _ = await _look(client)
        logger.info("etcd's database is smaller", megabytes=size.total >> 20, used=size.used >> 20)
    if what == "relieve" and (size.total < size.quota or not size.quota):
        await client.disarm()
        size, _ = await _look(client)
    return trouble(size)


async def _look(client: Etcd) -> tuple[Size, int]:
    found = await client.status()
    is_refusing = await client.has_no_space()
    size = Size(total=found.dbSize, used=found.dbSizeInUse, quota=found.dbSizeQuota, is_refusing=is_refusing)
    return size, found.header.revision
