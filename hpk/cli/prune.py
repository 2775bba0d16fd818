"""``hpk prune``: remove converted images that no pod uses."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.cli import serve
from hpk.images import cache, collect, uses

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import config


STAYED = "in use again, or the file system refused to remove it"


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """An image and its directory; another directory may hold the same name and digest."""

    found: collect.Found
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The images removed, or to be removed, and those kept with the reason; ``root`` is the settings' directory."""

    root: Path
    gone: list[StoredImage]
    kept: list[tuple[StoredImage, str]]
    is_dry: bool


def run(
    settings: config.Settings,
    *,
    is_dry: bool,
    is_json: bool,
    also_pinned: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Remove the images, or print which would be removed; return 0.

    Raises:
        errors.Fatal: The directory of images cannot be read.
    """
    serve.configure_logging("warning", sys.stderr)
    outcome = Outcome(root=settings.images_directory, gone=[], kept=[], is_dry=is_dry)
    try:
        for directory in collect.directories(settings.images_directory):
            _prune(directory, settings, outcome, also_pinned=also_pinned, sleep=sleep)
    except OSError as error:
        raise errors.Fatal(f"Cannot look for images in {settings.images_directory}: {error}") from error
    print(json.dumps(as_json(outcome), indent=1) if is_json else "\n".join(lines(outcome)))
    return 0


def _prune(
    directory: Path,
    settings: config.Settings,
    outcome: Outcome,
    *,
    also_pinned: bool,
    sleep: Callable[[float], None],
) -> None:
    policy = collect.policy(settings)
    used_by = uses.Uses(directory, pods=Path(settings.directory.pods))
    collector = collect.Collector(cache.Cache(directory), used_by, policy, sleep=sleep)
    images = collector.images()
    chosen = collect.removable(images, policy, now=time.time(), also_pinned=also_pinned)
    gone = chosen if outcome.is_dry else collector.remove(chosen)
    outcome.gone.extend(StoredImage(found=image, directory=directory) for image in gone)
    outcome.kept.extend(
        (
            StoredImage(found=image, directory=directory),
            STAYED if image in chosen else why(image, also_pinned=also_pinned),
        )
        for image in images
        if image not in gone
    )


def why(image: collect.Found, *, also_pinned: bool) -> str:
    """Return why an image stays."""
    if image.pods:
        return f"in use by {len(image.pods)} pod{'s' if len(image.pods) > 1 else ''}"
    if image.is_pinned and not also_pinned:
        return "pulled by hpk pull; --all removes it too"
    return "used a moment ago"


def lines(outcome: Outcome) -> list[str]:
    """Return the lines for people."""
    verb = "would remove" if outcome.is_dry else "removed"
    found = [f"{verb}  {_line(image, outcome)}  (last used {_day(image.found)})" for image in outcome.gone]
    found += [f"kept  {_line(image, outcome)}  ({reason})" for image, reason in outcome.kept]
    total = sum(image.found.size_bytes for image in outcome.gone)
    return [*found, f"{len(outcome.gone)} of {len(outcome.gone) + len(outcome.kept)} images, {_size(total)}"]


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Return the object for programs."""

    def one(image: StoredImage) -> dict[str, Any]:
        used = datetime.fromtimestamp(image.found.used_at, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return {
            "names": list(image.found.names),
            "digest": image.found.key.replace("-", ":", 1),
            "directory": str(image.directory),
            "bytes": image.found.size_bytes,
            "lastUsed": used,
        }

    return {
        "dryRun": outcome.is_dry,
        "removed": [one(image) for image in outcome.gone],
        "kept": [{**one(image), "reason": reason, "pods": list(image.found.pods)} for image, reason in outcome.kept],
        "freedBytes": sum(image.found.size_bytes for image in outcome.gone),
    }


def _line(image: StoredImage, outcome: Outcome) -> str:
    """Return the image's names and size, and its directory if that is not the settings' one."""
    name = ", ".join(image.found.names) or image.found.key.replace("-", ":", 1)
    where = "" if image.directory == outcome.root else f" in {image.directory}"
    return f"{name}{where}  {_size(image.found.size_bytes)}"


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _day(image: collect.Found) -> str:
    return datetime.fromtimestamp(image.used_at, tz=UTC).strftime("%Y-%m-%d")
