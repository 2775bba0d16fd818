"""The directory of converted images: what is there, by manifest digest and by reference.  Blocking, for threads.

::

    sha256-<digest>.sqfs    the root file system of the manifest with this digest
    sha256-<digest>.json    its size and config; written last, so its presence means that the image is whole
    sha256-<digest>.used    empty; its time is when the image was last used
    references/<hash>.json  one reference: the digest that its registry gave, and the manifest that was chosen;
                            of an image that was pulled by its tag there are two, by the tag and by the digest
    uses/                   which pods use which image (see `uses`)
    tmp/                    pulls under way (see `workspace`)

Several processes on several hosts may share it: every file appears by a rename and is never changed afterwards, and
nothing is locked, since shared file systems often cannot.  Who pulls what another pulls at the same time does the
work twice and the result is the same.
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
"""Of the conversion; an image that another version converted is converted again."""

_SUPERBLOCK: Final = struct.Struct("<I36sQ")
_MAGIC: Final = 0x73717368
_KEY: Final = re.compile(r"sha(256|384|512)-[0-9a-f]+")
"""Files of other names are not the cache's."""
_TOUCH_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An image in the cache, under one reference; ``digest`` is the registry's answer, ``manifest`` the file's name."""

    reference: str
    digest: str
    manifest: str
    file: Path
    size_bytes: int
    config: image.ImageConfig


class Cache:
    """One images directory; it is made when something is first written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked: dict[str, tuple[tuple[int, ...], tuple[int, ...], Stored]] = {}
        """What was found by each name, and what its two files, the reference's and the image's, were then."""

    def find(self, wanted: reference.Reference) -> Stored | None:
        """Return what the reference stood for when it was last pulled, if the file is there and sound.

        An image that came by its tag is found by its digest too, and of a tag and a digest the digest decides, as in
        containerd (``internal/cri/server/images/image_pull.go``).
        """
        name = wanted.key
        file = self._reference_file(name)
        version = _fingerprint(file)  # another process may pull what the reference stands for now
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
        """Return the converted image of a manifest, None if it is not there or not sound."""
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
        """Return where the converted image of a manifest is, or would be."""
        return self._directory / f"{manifest.replace(':', '-')}.sqfs"

    def link(self, wanted: reference.Reference, *, digest: str, manifest: str) -> None:
        """Remember what a reference, and the digest in its repository, stand for now; what is pinned stays so.

        Raises:
            OSError: The file system refused.
        """
        for name in dict.fromkeys((f"{wanted.name}@{digest}", wanted.key)):
            is_pinned = (jobdir.peek_json(str(self._reference_file(name))) or {}).get("pinned") is True
            self._link(name, digest=digest, manifest=manifest, is_pinned=is_pinned)

    def pin(self, wanted: reference.Reference, stored: Stored) -> None:
        """Remember that the user wants to keep what the reference stands for.

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
        """Take over a converted file from a pull's directory; replaces what is there.

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
        """Return all references whose image is there, by name."""
        found = []
        for _, link in _links(self._directory / "references"):
            name, digest = str(link.get("reference")), str(link.get("digest"))
            if stored := self.load(str(link.get("manifest")), reference=name, digest=digest):
                found.append(stored)
        return sorted(found, key=lambda stored: stored.reference)

    # What the collector needs; a key is the files' common name.

    def names(self) -> tuple[dict[str, list[str]], set[str]]:
        """Return the references by the key of their image, and the keys of the images that are pinned.

        A digest is named only where no tag of its repository leads to the image.
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
        """Return the size of each image that is there, by key."""
        found = {}
        for file in _files(self._directory):
            if _KEY.fullmatch(file.stem) and file.suffix == ".json":
                with contextlib.suppress(OSError):
                    found[file.stem] = file.with_suffix(".sqfs").stat().st_size
        return found

    def is_there(self, stored: Stored) -> bool:
        """Whether the image can be used now, by a fresh look."""
        return self.load(stored.manifest, reference=stored.reference, digest=stored.digest) is not None

    def touch(self, key: str) -> None:
        """Note that an image is used now; a disk that refuses is none of its user's concern."""
        file = self._directory / f"{key}.used"
        with contextlib.suppress(OSError):
            try:
                if time.time() - file.stat().st_mtime > _TOUCH_SECONDS:
                    os.utime(file)
            except FileNotFoundError:
                jobdir.write_bytes(str(file), b"")

    def used_at(self, key: str) -> float:
        """Return when an image was last used, or came."""
        for suffix in (".used", ".json"):
            with contextlib.suppress(OSError):
                return (self._directory / f"{key}{suffix}").stat().st_mtime
        return time.time()

    def condemn(self, key: str) -> bool:
        """Take an image out of sight; returns whether it was there, and not another's to remove."""
        with contextlib.suppress(OSError):
            (self._directory / f"{key}.json").rename(self._directory / f"{key}.condemned")
            return True
        return False

    def reprieve(self, key: str) -> None:
        """Take back a condemnation."""
        with contextlib.suppress(OSError):
            (self._directory / f"{key}.condemned").rename(self._directory / f"{key}.json")

    def remove(self, key: str) -> bool:
        """Remove a condemned image's files, and the references to it; returns false if it was pulled again meanwhile.

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
        """Whether somebody has pulled it again meanwhile."""
        return (self._directory / f"{key}.json").exists()

    def remove_orphans(self, *, older_than: float, used: Collection[str] = ()) -> None:
        """Remove images without a record, and records without an image, that are older than this.

        One that is used was condemned by a process that died before it looked again: it is taken back.
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
    """Yield the references that can be read, with their files; sorted."""
    for file in sorted(_files(directory)):
        if (link := jobdir.peek_json(str(file))) is not None:
            yield file, link


def _told(names: Collection[str]) -> list[str]:
    """Return the names that a person wants to read: those by digest are left out beside those by tag."""
    tagged = {name.rpartition(":")[0] for name in names if "@" not in name}
    return sorted(name for name in names if name.partition("@")[0] not in tagged or "@" not in name)


def _is_sound(file: Path, *, size: Any) -> bool:
    """Whether the file is a squashfs of the size that was recorded: cut short or overwritten it is neither."""
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
