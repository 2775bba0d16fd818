"""The image file system in the node's status: images, free space, garbage collection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from hpk import errors
from hpk.images import collect
from hpk.node import pressure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hpk.images import store

LOG = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 60.0
"""Pause between measurements for the node's status."""


class ImageFs:
    """Monitoring of images and free space, and garbage collection of unused images.

    The kubelet must be able to write in the other directories as well. Collection starts after `knows_pods` is set.

    Attributes:
        images: The images in the store.
        pressure: Why there is no free space; empty if there is.
    """

    def __init__(
        self, images: store.ImageStore, *, directory: Path, others: Sequence[Path], knows_pods: asyncio.Event
    ) -> None:
        self.images: tuple[store.CachedImage, ...] = ()
        self.pressure = ""
        self._store, self._directory, self._others, self._knows_pods = images, directory, others, knows_pods

    async def watch(self) -> NoReturn:
        """Measure until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def collect(self) -> NoReturn:
        """Collect unused images at the kubelet's interval, until cancelled."""
        await self._knows_pods.wait()
        while True:
            await asyncio.sleep(collect.PERIOD_SECONDS)
            if self._store.collector:
                try:
                    await asyncio.to_thread(self._store.collector.collect)
                except OSError as error:
                    LOG.warning("Cannot collect images", error=str(error))

    async def look(self) -> None:
        """Measure once. If there is no space for images, collect garbage."""
        try:
            if self._knows_pods.is_set():
                await self._store.tidy()
            self.images = await self._store.list()
        except (errors.HpkError, OSError) as error:
            LOG.warning("Cannot list the images", error=str(error))
        why = await asyncio.to_thread(pressure.measure, [self._directory], may_be_anothers=True)
        if why and self._knows_pods.is_set() and self._store.collector:
            try:
                await asyncio.to_thread(self._store.collector.make_room, pressure.LEAST_BYTES)
            except OSError as error:
                LOG.warning("Cannot make room for images", error=str(error))
        why = why or await asyncio.to_thread(pressure.measure, self._others)
        if why != self.pressure:
            LOG.warning("Disk pressure" if why else "No disk pressure any more", why=why)
        self.pressure = why
