"""SIF files, byte for byte as Apptainer lays them out."""

from __future__ import annotations

import struct

from hpk.images import image, sif

SQUASHFS = b"hsqs" + bytes(range(256)) * 300
CODES = {name: code for code, name in sif._ARCHITECTURES.items()}
HERE = image.host_architecture()


def sif_bytes(
    *objects: tuple[int, bytes, bytes, bytes],
    root: bytes = SQUASHFS,
    fs_type: int = 1,
    part_type: int = 2,
    architecture: str = HERE,
) -> bytes:
    """A SIF file of these objects (kind, name, extra, data), and a root file system after them."""
    partition = struct.pack("<ii3s", fs_type, part_type, CODES[architecture] + b"\0")
    everything = [*objects, (0x4004, b"squashfs-1", partition, root)]
    start = 4096
    offset = start + 585 * 48
    table, data = b"", b""
    for number, (kind, name, extra, content) in enumerate(everything):
        place = offset + len(data)
        table += struct.pack(
            "<i?3I7q128s384s", kind, True, number, 1, 0, place, len(content), len(content), 0, 0, 0, 0, name, extra
        )
        data += content
    table += bytes(585) * (48 - len(everything))
    header = struct.pack(
        "<32s10s3s3s16s8q",
        b"#!/usr/bin/env run-singularity\n",
        b"SIF_MAGIC\0",
        b"01\0",
        CODES[architecture] + b"\0",
        b"u" * 16,
        *(0, 0, 48 - len(everything), 48, start, 585 * 48, offset, len(data)),
    )
    return header.ljust(start, b"\0") + table + data
