"""A SIF file's header: the position of its root file system, its architecture and its start command.

No tool is called and nothing is unpacked; the layout is that of https://github.com/apptainer/sif (version 01).

An unchanged registry image (``apptainer build x.sif docker://…``) carries its OCI config and is started like the
image. Any other SIF is started as ``apptainer run`` would, as root of the container:
``/.singularity.d/actions/exec``, which reads the definition file's environment, then ``/.singularity.d/runscript``.
The OCI config alone does not distinguish the two: Apptainer copies the base image's config into images built on it.
A pod's ``command`` replaces both scripts, as it replaces any entrypoint; it then sees the environment of the OCI
config, but not that of a definition file's ``%environment``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import struct
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from hpk import errors
from hpk.images import image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENTRYPOINT: Final = ("/.singularity.d/actions/exec", "/.singularity.d/runscript")

_HEADER: Final = struct.Struct("<32s10s3s3s16s8q")
_DESCRIPTOR: Final = struct.Struct("<i?12x2q40x128s384s")
"""Skips the object's number, group and link, its padded size, its times and its owner."""
_PARTITION: Final = struct.Struct("<ii3s")
_MAGIC: Final = b"SIF_MAGIC\0"
_SQUASHFS_MAGIC: Final = b"hsqs"
_DEFINITION_DATA: Final = 0x4001
_PARTITION_DATA: Final = 0x4004
_JSON_DATA: Final = 0x4006
_OCI_DATA: Final = (0x400A, 0x400B)
_SQUASHFS: Final = 1
_PRIMARY: Final = 2
_FILE_SYSTEMS: Final = {2: "ext3", 3: "an archive", 4: "raw data", 5: "encrypted", 6: "encrypted"}
_ARCHITECTURES: Final = {
    b"01": "386", b"02": "amd64", b"03": "arm", b"04": "arm64", b"05": "ppc64", b"06": "ppc64le",
    b"07": "mips", b"08": "mipsle", b"09": "mips64", b"10": "mips64le", b"11": "s390x", b"12": "riscv64",
}  # fmt: skip
_CHANGES: Final = re.compile(rb"^[ \t]*%(runscript|environment|post|setup|app\w+)\b", re.MULTILINE | re.IGNORECASE)
"""Sections of a definition file that make the image differ from its base."""
_OCI_CONFIG: Final = b"oci-config.json"
_MOST_DESCRIPTORS: Final = 4096
_LARGEST_OBJECT: Final = 8 << 20
_TAIL: Final = 64 << 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sif:
    """A SIF file's root file system: a squashfs of ``size`` bytes, ``offset`` bytes into the file.

    ``digest`` (``sha256:…``) covers the file's header and descriptors and the squashfs' own header and tables, which
    hold every file's name, size and compressed block sizes. It costs one short read whatever the file's size, is equal
    for every copy of the file, and differs after every rebuild.
    """

    offset: int
    size: int
    digest: str
    config: image.ImageConfig


class _Descriptor(NamedTuple):
    kind: int
    used: bool
    offset: int
    size: int
    name: bytes
    extra: bytes


def read(path: Path) -> Sif:
    """Read the header of the SIF file at path; blocks for one or two short reads.

    Raises:
        errors.ImageRefused: The file is missing, not a SIF, or cannot be mounted: encrypted, ext3, OCI-SIF.
    """
    try:
        with path.open("rb") as file:
            return _read(file, path=path)
    except OSError as error:
        raise errors.ImageRefused(f"Cannot read the SIF file {path}: {error.strerror or error}") from error
    except (struct.error, ValueError) as error:
        raise errors.ImageRefused(f"Cannot use the SIF file {path}: it is damaged ({error})") from error


def _read(file: IO[bytes], *, path: Path) -> Sif:
    raw = file.read(_HEADER.size)
    if len(raw) < _HEADER.size or raw[32:42] != _MAGIC:
        raise errors.ImageRefused(f"Cannot use {path}: it is not a SIF file")
    *_, total, start, _length, _, _ = _HEADER.unpack(raw)
    if not 0 <= total <= _MOST_DESCRIPTORS or start < 0:
        raise ValueError(f"{total} descriptors at {start}")
    file.seek(start)
    table = file.read(total * _DESCRIPTOR.size)
    found = list(_descriptors(table))
    root = _root(found, path=path)
    fs_type, _part_type, arch = _PARTITION.unpack_from(root.extra)
    if fs_type != _SQUASHFS:
        kind = _FILE_SYSTEMS.get(fs_type, "of an unknown kind")
        raise errors.ImageRefused(f"Cannot use the SIF file {path}: its file system is {kind}, not squashfs")
    architecture = _ARCHITECTURES.get(arch.rstrip(b"\0"), "")
    here = image.host_architecture()
    if architecture != here:
        raise errors.ImageRefused(
            f"Cannot use the SIF file {path}: it is for {architecture or 'an unknown machine'}, this machine is {here}"
        )
    file.seek(root.offset)
    superblock = file.read(96)
    if not superblock.startswith(_SQUASHFS_MAGIC):
        raise ValueError("there is no squashfs where the header says")
    file.seek(max(root.offset, root.offset + root.size - _TAIL))
    tail = file.read(_TAIL)
    if file.tell() < root.offset + root.size:
        raise ValueError("it is shorter than its header says")
    digest = hashlib.sha256(raw + table + superblock + tail).hexdigest()
    config = _config(file, found, architecture=architecture)
    return Sif(offset=root.offset, size=root.size, digest=f"sha256:{digest}", config=config)


def _descriptors(table: bytes) -> Iterator[_Descriptor]:
    for fields in _DESCRIPTOR.iter_unpack(table[: len(table) // _DESCRIPTOR.size * _DESCRIPTOR.size]):
        descriptor = _Descriptor._make(fields)
        if descriptor.used:
            yield descriptor


def _root(found: list[_Descriptor], *, path: Path) -> _Descriptor:
    for descriptor in found:
        if descriptor.kind == _PARTITION_DATA and _PARTITION.unpack_from(descriptor.extra)[1] == _PRIMARY:
            return descriptor
    if any(descriptor.kind in _OCI_DATA for descriptor in found):
        raise errors.ImageRefused(
            f"Cannot use the SIF file {path}: it is an OCI-SIF; "
            "build a plain one with 'apptainer build' from the same source"
        )
    raise errors.ImageRefused(f"Cannot use the SIF file {path}: it has no primary system partition")


def _config(file: IO[bytes], found: list[_Descriptor], *, architecture: str) -> image.ImageConfig:
    own = image.ImageConfig(entrypoint=ENTRYPOINT, architecture=architecture)
    for descriptor in found:
        if descriptor.kind == _JSON_DATA and descriptor.name.rstrip(b"\0") == _OCI_CONFIG:
            inner = json.loads(_data(file, descriptor))
            base = image.config_from_json({"config": inner, "architecture": architecture})
            is_changed = any(_CHANGES.search(_data(file, other)) for other in found if other.kind == _DEFINITION_DATA)
            return dataclasses.replace(own, env=base.env) if is_changed else base
    return own


def _data(file: IO[bytes], descriptor: _Descriptor) -> bytes:
    if descriptor.size > _LARGEST_OBJECT:
        raise ValueError(f"its {descriptor.name.rstrip(bytes(1)).decode(errors='replace')} is too large")
    file.seek(descriptor.offset)
    return file.read(descriptor.size)
