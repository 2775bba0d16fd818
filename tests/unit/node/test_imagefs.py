"""The node tells of its images and of the room for them, and makes room only once it knows who uses what."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.images import store
from hpk.node import imagefs, pressure

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Store:
    """Images, and how often room was asked for."""

    def __init__(self) -> None:
        self.collector = self
        self.wanted: list[int] = []
        self.is_broken = self.is_refused = False
        self.tidied = 0

    async def tidy(self) -> None:
        self.tidied += 1

    async def list(self) -> tuple[store.CachedImage, ...]:
        if self.is_broken:
            raise errors.Retryable("no")
        return (store.CachedImage(names=("a:1",), size_bytes=5),)

    def make_room(self, wanted: int) -> int:
        self.wanted.append(wanted)
        if self.is_refused:
            raise PermissionError(13, "Permission denied")
        return 0


async def test_room_is_made_only_where_images_lack_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressure elsewhere is told, and no image goes for it."""
    made: Any = Store()
    known, full = asyncio.Event(), {tmp_path / "images"}
    monkeypatch.setattr(pressure, "measure", lambda them, **_: "full" if full & set(them) else "")
    one = imagefs.ImageFs(made, directory=tmp_path / "images", others=[tmp_path / "state"], knows_pods=known)
    await one.look()
    assert (one.images, one.pressure, made.wanted) == (
        (store.CachedImage(names=("a:1",), size_bytes=5),),
        "full",
        [],
    )
    known.set()
    made.is_broken = True
    await one.look()
    assert (one.pressure, made.wanted, len(one.images)) == ("full", [pressure.LEAST_BYTES], 1)
    assert made.tidied == 1
    made.is_refused = True
    await one.look()
    assert (one.pressure, len(made.wanted)) == ("full", 2)
    made.is_refused, made.wanted = False, [1]
    full = {tmp_path / "state"}
    await one.look()
    assert (one.pressure, len(made.wanted)) == ("full", 1)
    full = set()
    await one.look()
    assert one.pressure == ""
