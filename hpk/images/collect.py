"""Garbage collection of converted images: the kubelet's, and ``hpk prune``.

The rules are the kubelet's (pkg/kubelet/images/image_gc_manager.go): above the high threshold, images are removed
until the low one is reached, the longest unused first, never one in use or too young. The kubelet's capacity is the
file system's. Ours is a setting: on most sites a shared home is 90 % full, which says nothing about the user's quota.
If a quota is reached all the same, `store.ImageStore` makes room on demand.

Only the cache's own files are removed. Images that the user pulled by hand are kept until ``hpk prune --all``: a
compute node may reach no registry.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from hpk import config
    from hpk.images import cache, uses

LOG = structlog.get_logger(__name__)

PERIOD_SECONDS: Final = 300.0
"""Between two collections; the kubelet's ImageGCPeriod."""
SETTLE_SECONDS: Final = 2.0
"""Between hiding an image and removing it: a kubelet that found it just before has recorded its use by then."""
ORPHAN_SECONDS: Final = 3600.0
"""Age at which a file without its record belongs to a process that died."""


@dataclass(frozen=True, kw_only=True)
class ImageGCPolicy:
    """When images are removed; the names in brackets are those of KubeletConfiguration."""

    capacity_bytes: int
    high_percent: int = 85
    """[imageGCHighThresholdPercent]"""
    low_percent: int = 80
    """[imageGCLowThresholdPercent]"""
    minimum_age_seconds: float = 120.0
    """[imageMinimumGCAge]"""
    maximum_age_seconds: float = 0.0
    """[imageMaximumGCAge]; 0 for no limit."""


def policy(settings: config.Settings) -> ImageGCPolicy:
    """Return the policy of the settings."""
    return ImageGCPolicy(
        capacity_bytes=settings.images_gib << 30,
        high_percent=settings.image_gc_high_threshold_percent,
        low_percent=settings.image_gc_low_threshold_percent,
        minimum_age_seconds=settings.image_minimum_gc_age,
        maximum_age_seconds=settings.image_maximum_gc_age,
    )


def configuration(policy: ImageGCPolicy) -> dict[str, Any]:
    """Return the policy as ``/configz`` shows it."""
    return {
        "imageMinimumGCAge": f"{policy.minimum_age_seconds:g}s",
        "imageMaximumGCAge": f"{policy.maximum_age_seconds:g}s",
        "imageGCHighThresholdPercent": policy.high_percent,
        "imageGCLowThresholdPercent": policy.low_percent,
    }


@dataclass(frozen=True, kw_only=True)
class Found:
    """An image of the cache.

    Attributes:
        key: The common stem of its files.
        used_at: Its last use, else its addition (Unix seconds).
        is_pinned: Whether the user has pulled it by hand.
        pods: Directories of the pods that use it.
    """

    key: str
    names: tuple[str, ...]
    size_bytes: int
    used_at: float
    is_pinned: bool = False
    pods: tuple[str, ...] = ()


def due(images: Sequence[Found], policy: ImageGCPolicy, *, now: float) -> list[Found]:
    """Return the images to remove, in this order."""
    free = removable(images, policy, now=now)
    oldest = policy.maximum_age_seconds
    gone = [image for image in free if oldest and now - image.used_at > oldest]
    used = sum(image.size_bytes for image in images) - sum(image.size_bytes for image in gone)
    if used * 100 < policy.capacity_bytes * policy.high_percent:
        return gone
    return gone + enough(
        [image for image in free if image not in gone], used - policy.capacity_bytes * policy.low_percent // 100
    )


def removable(images: Iterable[Found], policy: ImageGCPolicy, *, now: float, also_pinned: bool = False) -> list[Found]:
    """Return the images that may be removed, the longest unused first."""
    free = [
        image
        for image in images
        if not image.pods and (also_pinned or not image.is_pinned) and now - image.used_at >= policy.minimum_age_seconds
    ]
    return sorted(free, key=lambda image: (image.used_at, image.key))


def enough(images: Iterable[Found], wanted_bytes: int) -> list[Found]:
    """Return the first images that together have the wanted size, or all."""
    chosen: list[Found] = []
    for image in images:
        if wanted_bytes <= 0:
            break
        chosen.append(image)
        wanted_bytes -= image.size_bytes
    return chosen


class Collector:
    """Collects the images of one directory; its methods block: call them in threads."""

    def __init__(
        self,
        cache: cache.Cache,
        uses: uses.Uses,
        policy: ImageGCPolicy,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy = policy
        self._cache, self._uses, self._sleep, self._clock = cache, uses, sleep, clock

    def images(self) -> list[Found]:
        """Return all images; mark those in use as used now."""
        return self._images(self._uses.live(now=self._clock()))

    def _images(self, live: Mapping[str, Sequence[uses.Use]]) -> list[Found]:
        names, pinned = self._cache.names()
        found = []
        for key, size in self._cache.sizes().items():
            pods = tuple(sorted(str(use.pod) for use in live.get(key, ())))
            if pods:
                self._cache.touch(key)
            found.append(
                Found(
                    key=key,
                    names=tuple(names.get(key, ())),
                    size_bytes=size,
                    used_at=self._cache.used_at(key),
                    is_pinned=key in pinned,
                    pods=pods,
                )
            )
        return found

    def collect(self) -> list[Found]:
        """Remove the images that are due and the leftovers of dead processes; return the removed images."""
        live = self._uses.live(now=self._clock())
        self._cache.remove_orphans(older_than=self._clock() - ORPHAN_SECONDS, used=live.keys())
        images = self._images(live)
        gone = self.remove(due(images, self.policy, now=self._clock()))
        used = sum(image.size_bytes for image in images) - sum(image.size_bytes for image in gone)
        if used * 100 >= self.policy.capacity_bytes * self.policy.high_percent:
            LOG.warning(
                "Images take more space than allowed, and all that are left are in use, pulled by hand or too young",
                bytes=used,
                high_bytes=self.policy.capacity_bytes * self.policy.high_percent // 100,
                instead="hpk prune, or raise images_gib",
            )
        return gone

    def make_room(self, wanted_bytes: int) -> int:
        """Remove unused images until that many bytes are free; return how many were freed."""
        free = removable(self.images(), self.policy, now=self._clock())
        return sum(image.size_bytes for image in self.remove(enough(free, wanted_bytes)))

    def remove(self, images: Sequence[Found]) -> list[Found]:
        """Remove images, except those that get used or pinned meanwhile; return the removed ones."""
        condemned = [image for image in images if self._cache.condemn(image.key)]
        if not condemned:
            return []
        gone = []
        try:
            self._sleep(SETTLE_SECONDS)
        finally:
            live = self._uses.live(now=self._clock())
            _, pinned = self._cache.names()
            for image in condemned:
                if image.key in live or (image.key in pinned and not image.is_pinned):
                    self._cache.reprieve(image.key)
                    continue
                with contextlib.suppress(OSError):
                    if self._cache.remove(image.key):
                        gone.append(image)
                        LOG.info("Removed an image", image=", ".join(image.names) or image.key, bytes=image.size_bytes)
        return gone


def directories(root: Path) -> list[Path]:
    """Return the image directories below this one; users with and without subordinate ids have their own."""
    return [path for path in (root, root / "one-id") if path.is_dir()]
