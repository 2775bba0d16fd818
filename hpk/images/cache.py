"""The directory of converted images, by manifest digest and by reference. Its functions block: call them in threads.

::

    sha256-<digest>.sqfs    the root file system of the manifest with this digest
    sha256-<digest>.json    its size and config; written last, so its presence means that the image is complete
    sha256-<digest>.used    empty; its mtime is the image's last use
    references/<hash>.json  one reference: the digest from its registry, and the manifest that was chosen;
                            an image pulled by tag has two, one for the tag and one for the digest
    uses/                   which pods use which image (see `uses`)
    tmp/                    pulls in progress (see `workspace`)

Several processes on several hosts may share it. Every file appears by a rename and never changes. Nothing is locked,
since shared file systems often cannot: two simultaneous pulls of one image do the work twice, with the same result.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpk import jobdir
from hpk.images import image

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from hpk.images import reference

VERSION: Final = 1
"""Version of the conversion; images of another version are converted again."""

_SUPERBLOCK: Final = struct.Struct("<I36sQ")
_MAGIC: Final = 0x73717368
_KEY: Final = re.compile(r"sha(256|384|512)-[0-9a-f]+")
"""Files with other names do not belong to the cache."""
_TOUCH_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An image in the cache under one reference; ``digest`` is the registry's, ``manifest`` the chosen manifest's."""

    reference: str
    digest: str
    manifest: str
    file: Path
    size_bytes: int
    config: image.ImageConfig


class Cache:
    """One images directory; it is created by the first write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked: dict[str, tuple[tuple[int, ...], tuple[int, ...], Stored]] = {}
        """The last result for each name, with the fingerprints that the reference's and the image's file then had."""

    def find(self, wanted: reference.Reference) -> Stored | None:
        """Return the image that the reference named when it was last pulled, if the file exists and is sound.

        An image pulled by tag is found by its digest too. The digest of a reference decides over its tag, as in
        containerd (``internal/cri/server/images/image_pull.go``).
        """
        name = wanted.key
        file = self._reference_file(name)
        version = _fingerprint(file)  # another process may pull it again
        known = self._checked.get(name)
        if known is not None and known[:2] == (version, _fingerprint(known[2].file)):
            return known[2]
        self._checked.pop(name, None)
        link = jobdir.peek_json(str(file))
        if link is None or link.get("reference") != name:
            return None
        stored = self.load(str(link.get("manifest")), reference=name, digest=str(link.get("digest")))
        fingerprint = stored and _fingerprint(stored.file)
        if stored and version and fingerprint:
            self._checked[name] = (version, fingerprint, stored)
        return stored

    def load(self, manifest: str, *, reference: str, digest: str) -> Stored | None:
        """Return the converted image of a manifest; None if it is missing or not sound."""
        file = self.file(manifest)
        meta = jobdir.peek_json(str(file.with_suffix(".json")))
        if meta is None or meta.get("version") != VERSION or not _is_sound(file, size=meta.get("size")):
            return None
        try:
            config = image.config_from_json(meta["image"])
        except (ValueError, LookupError, AttributeError):
            return None
        return Stored(
            reference=reference,
            digest=digest,
            manifest=manifest,
            file=file,
            size_bytes=int(meta["size"]),
            config=config,
        )

    def file(self, manifest: str) -> Path:
        """Return the path of a manifest's converted image, whether it exists or not."""
        return self._directory / f"{manifest.replace(':', '-')}.sqfs"

    def link(self, wanted: reference.Reference, *, digest: str, manifest: str) -> None:
        """Record what a reference, and the digest in its repository, name now; pinned references stay pinned.

        Raises:
            OSError: The file system refused.
        """
        for name in dict.fromkeys((f"{wanted.name}@{digest}", wanted.key)):
            is_pinned = (jobdir.peek_json(str(self._reference_file(name))) or {}).get("pinned") is True
            self._link(name, digest=digest, manifest=manifest, is_pinned=is_pinned)

    def pin(self, wanted: reference.Reference, stored: Stored) -> None:
        """Record that the user wants to keep the reference's image.

        Raises:
            OSError: The file system refused.
        """
        if (jobdir.peek_json(str(self._reference_file(wanted.key))) or {}).get("pinned") is not True:
            self._link(wanted.key, digest=stored.digest, manifest=stored.manifest, is_pinned=True)

    def _link(self, name: str, *, digest: str, manifest: str, is_pinned: bool) -> None:
        file = self._reference_file(name)
        jobdir.make_directory(str(file.parent))
        value = {"reference": name, "digest": digest, "manifest": manifest, "at": time.time()}
        jobdir.write_json(str(file), value | ({"pinned": True} if is_pinned else {}))
        self._checked.pop(name, None)

    def add(self, manifest: str, *, converted: Path, config: image.ImageConfig) -> None:
        """Move a converted file from a pull's directory into the cache; replace the previous one.

        Raises:
            OSError: The file system refused.
        """
        file = self.file(manifest)
        converted.chmod(0o600)
        size = converted.stat().st_size
        converted.rename(file)
        jobdir.write_json(
            str(file.with_suffix(".json")),
            {"version": VERSION, "manifest": manifest, "size": size, "image": config.as_json(), "at": time.time()},
        )

    def references(self) -> list[Stored]:
        """Return all references whose image exists, by name."""
        found = []
        for _, link in _links(self._directory / "references"):
            name, digest = str(link.get("reference")), str(link.get("digest"))
            if stored := self.load(str(link.get("manifest")), reference=name, digest=digest):
                found.append(stored)
        return sorted(found, key=lambda stored: stored.reference)

    # For the collector; a key is the common stem of an image's files.

    def names(self) -> tuple[dict[str, list[str]], set[str]]:
        """Return the references by image key, and the keys of pinned images.

        A digest is listed only if no tag of its repository leads to the image.
        """
        names: dict[str, list[str]] = {}
        pinned: set[str] = set()
        for _, link in _links(self._directory / "references"):
            key = self.file(str(link.get("manifest"))).stem
            names.setdefault(key, []).append(str(link.get("reference")))
            if link.get("pinned") is True:
                pinned.add(key)
        return {key: _told(found) for key, found in names.items()}, pinned

    def sizes(self) -> dict[str, int]:
        """Return the size of each existing image, by key."""
        found = {}
        for file in _files(self._directory):
            if _KEY.fullmatch(file.stem) and file.suffix == ".json":
                with contextlib.suppress(OSError):
                    found[file.stem] = file.with_suffix(".sqfs").stat().st_size
        return found

    def is_there(self, stored: Stored) -> bool:
        """Return whether the image can be used now, by a fresh look."""
        return self.load(stored.manifest, reference=stored.reference, digest=stored.digest) is not None

    def touch(self, key: str) -> None:
        """Record that an image is used now; ignore a disk that refuses."""
        file = self._directory / f"{key}.used"
        with contextlib.suppress(OSError):
            try:
                if time.time() - file.stat().st_mtime > _TOUCH_SECONDS:
                    os.utime(file)
            except FileNotFoundError:
                jobdir.write_bytes(str(file), b"")

    def used_at(self, key: str) -> float:
        """Return when an image was last used, else when it was added (Unix seconds)."""
        for suffix in (".used", ".json"):
            with contextlib.suppress(OSError):
                return (self._directory / f"{key}{suffix}").stat().st_mtime
        return time.time()

    def condemn(self, key: str) -> bool:
        """Hide an image before its removal; return false if it was gone already or cannot be removed."""
        with contextlib.suppress(OSError):
            (self._directory / f"{key}.json").rename(self._directory / f"{key}.condemned")
            return True
        return False

    def reprieve(self, key: str) -> None:
        """Undo :meth:`condemn`."""
        with contextlib.suppress(OSError):
            (self._directory / f"{key}.condemned").rename(self._directory / f"{key}.json")

    def remove(self, key: str) -> bool:
        """Remove a condemned image's files and references; return false if it was pulled again meanwhile.

        Raises:
            OSError: The file system refused.
        """
        is_back = self._is_back(key)
        if not is_back:
            (self._directory / f"{key}.sqfs").unlink(missing_ok=True)
            (self._directory / f"{key}.used").unlink(missing_ok=True)
            for file, link in _links(self._directory / "references"):
                if self.file(str(link.get("manifest"))).stem == key:
                    file.unlink(missing_ok=True)
        (self._directory / f"{key}.condemned").unlink(missing_ok=True)
        return not is_back

    def _is_back(self, key: str) -> bool:
        return (self._directory / f"{key}.json").exists()

    def remove_orphans(self, *, older_than: float, used: Collection[str] = ()) -> None:
        """Remove images without a record, and records without an image, that are older than this.

        Restore an image in use: the process that condemned it died before its second look.
        """
        for file in _files(self._directory):
            if file.stem in used:
                if file.suffix == ".condemned" and not self._is_back(file.stem):
                    self.reprieve(file.stem)
                continue
            is_orphan = _KEY.fullmatch(file.stem) and (
                (file.suffix in {".sqfs", ".used", ".condemned"} and not self._is_back(file.stem))
                or (file.suffix == ".json" and not file.with_suffix(".sqfs").exists())
            )
            with contextlib.suppress(OSError):
                if is_orphan and file.stat().st_ctime < older_than:
                    file.unlink()

    def _reference_file(self, name: str) -> Path:
        return self._directory / "references" / f"{hashlib.sha256(name.encode()).hexdigest()[:40]}.json"


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _links(directory: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for file in sorted(_files(directory)):
        if (link := jobdir.peek_json(str(file))) is not None:
            yield file, link


def _told(names: Collection[str]) -> list[str]:
    """Return the names to show to a person: no digests of repositories that have a tag."""
    tagged = {name.rpartition(":")[0] for name in names if "@" not in name}
    return sorted(name for name in names if name.partition("@")[0] not in tagged or "@" not in name)


def _is_sound(file: Path, *, size: Any) -> bool:
    """Return whether the file is a squashfs of the recorded size, neither cut short nor overwritten."""
    try:
        with file.open("rb") as opened:
            raw = opened.read(_SUPERBLOCK.size)
            actual = os.fstat(opened.fileno()).st_size
    except OSError:
        return False
    if len(raw) < _SUPERBLOCK.size or actual != size:
        return False
    magic, _, used = _SUPERBLOCK.unpack(raw)
    return bool(magic == _MAGIC and used <= actual)


def _fingerprint(file: Path) -> tuple[int, ...] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns
