"""etcd's database is kept small, and mended when it is full."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hpk import errors
from hpk.controlplane import etcd, etcd_client, upkeep

MB = 1 << 20


def size(total: int, used: int, *, quota: int = 2048, is_refusing: bool = False) -> upkeep.Size:
    """In megabytes."""
    return upkeep.Size(total=total * MB, used=used * MB, quota=quota * MB, is_refusing=is_refusing)


@pytest.mark.parametrize(
    ("found", "step", "words"),
    [
        (size(20, 2), "nothing", ""),
        (size(100, 60), "nothing", ""),
        (size(100, 40), "defragment", ""),
        (size(1700, 1200), "defragment", ""),
        (size(1700, 1690), "nothing", "holds 1690 MB of at most 2048 MB, and accepts no changes beyond that: delete"),
        (size(2048, 100, is_refusing=True), "relieve", "the cluster accepts no changes: etcd's database holds 100 MB"),
    ],
)
def test_what_is_done_and_told(found: upkeep.Size, step: str, words: str) -> None:
    """A file that holds little is made smaller, seldom; what cannot shrink is told before nothing goes any more."""
    assert upkeep.step(found) == step
    told = upkeep.trouble(found)
    assert words in told
    assert bool(told) == bool(words)


class Etcd(etcd_client.EtcdClient):
    """Answers as etcd does; what is kept of its database after compacting is given, and seen one compaction later."""

    def __init__(self, *, kept: int) -> None:
        self.calls: list[str] = []
        self.kept = kept
        self.is_slow = False
        self.total, self.used, self.alarm = 2048, 2040, True
        self._freed = 2040

    async def status(self) -> Any:
        return SimpleNamespace(
            dbSize=self.total * MB,
            dbSizeInUse=self.used * MB,
            dbSizeQuota=2048 * MB,
            header=SimpleNamespace(revision=77),
        )

    async def has_no_space(self) -> bool:
        return self.alarm

    async def compact(self, revision: int) -> None:
        self.calls.append(f"compact {revision}")
        self.used, self._freed = self._freed, self.kept

    async def defragment(self) -> None:
        self.calls.append("defragment")
        self.total = self.used
        if self.is_slow:
            raise errors.Retryable("etcd does not answer: DEADLINE_EXCEEDED")

    async def disarm(self) -> None:
        self.calls.append("disarm")
        self.alarm = False


@pytest.mark.parametrize(("kept", "words"), [(100, ""), (2000, "holds 2000 MB of at most 2048 MB")])
async def test_a_full_database_is_relieved(kept: int, words: str) -> None:
    """In this order, for each step needs the one before; what is still too much is told."""
    client = Etcd(kept=kept)
    told = await upkeep.look_after(client)
    assert client.calls == ["compact 76", "compact 77", "defragment", "disarm"]
    assert words in told
    assert bool(told) == bool(words)


async def test_a_database_that_cannot_shrink_is_left_readable() -> None:
    """While the user deletes objects: to defragment it every half minute would answer nobody for as long."""
    client = Etcd(kept=2040)
    client.total = 2060
    for _ in range(3):
        assert "the cluster accepts no changes: etcd's database holds 2040 MB" in await upkeep.look_after(client)
    assert client.calls == ["compact 76", "compact 77"] * 3
    client.kept = 1000
    assert await upkeep.look_after(client) == ""
    assert client.calls[6:] == ["compact 76", "compact 77", "defragment", "disarm"]


async def test_a_defragmentation_that_outlasts_its_call_is_not_repeated() -> None:
    """etcd goes on with it; what is left to do is done at the next look."""
    client = Etcd(kept=1000)
    client.is_slow = True
    with pytest.raises(errors.Retryable):
        await upkeep.look_after(client)
    assert await upkeep.look_after(client) == ""
    assert client.calls == ["compact 76", "compact 77", "defragment", "compact 76", "compact 77", "disarm"]


@pytest.mark.parametrize(
    ("free", "held", "quota"),
    [
        (100 << 30, 0, 2 << 30),
        (3 << 30, 0, 1 << 30),
        (1 << 20, 0, 256 << 20),
        (900 << 20, 600 << 20, 750 << 20),
        (9 << 30, 3 << 30, 2 << 30),
    ],
)
def test_the_quota_fits_the_disk(free: int, held: int, quota: int) -> None:
    """It leaves room for a copy, and is never so small that an ordinary cluster, or the one there is, does not fit."""
    assert etcd.quota_bytes(free, held_bytes=held) == quota
