"""A layer, a tar file with any compression, as the entries that :mod:`hpk.images.layers` merges.

Whoever built the image chose every byte. Anything that is not a tar file, or a harmful one, is a `layers.BadLayer`.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import tarfile
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

from hpk.images import bounds, layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ENCODING: Final = "utf-8"
ERRORS: Final = "surrogateescape"
"""Names and attributes are bytes and are kept unchanged."""
XATTR: Final = "SCHILY.xattr."

_CHUNK: Final = 1 << 20
_TAR_BUFFER: Final = 32 << 10  # tarfile copies the remainder after each header: small is faster, measured
_UNWANTED_XATTRS: Final = ("user.overlay.", "user.fuseoverlayfs.", "security.selinux", "security.ima", "security.evm")
"""Attributes that have a meaning to the overlay above the image, or only on the host that built it."""
_KINDS: Final = {
    tarfile.DIRTYPE: "directory",
    tarfile.SYMTYPE: "symlink",
    tarfile.LNKTYPE: "hardlink",
    tarfile.FIFOTYPE: "fifo",
    tarfile.CHRTYPE: "device",
    tarfile.BLKTYPE: "device",
    **dict.fromkeys(tarfile.REGULAR_TYPES, "file"),
}
_LATEST: Final = (1 << 32) - 1
"""Seconds; squashfs has 32 bits for them."""
_EXTENSIONS: Final = frozenset({
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK,
})  # fmt: skip
"""Headers with a content that tarfile reads into memory."""

# Public names of tarfile that its type stubs lack.
_END: Final = vars(tarfile)["EOFHeaderError"]
_EMPTY: Final = vars(tarfile)["EmptyHeaderError"]
_DAMAGED: Final = (vars(tarfile)["InvalidHeaderError"], vars(tarfile)["TruncatedHeaderError"])


class ToolMissing(Exception):
    """A program is not installed; the text is for the user."""


def entries(file: str, *, has_one_owner: bool, count: bounds.Count) -> Iterator[layers.Entry]:
    """Yield the layer's members.

    Raises:
        layers.BadLayer: The layer is damaged, or exceeds a bound.
        ToolMissing: The layer is compressed with zstd, which is not installed.
    """
    count.layer()
    with members(file) as archive:
        for number, member in enumerate(numbered(archive)):
            kind = _KINDS.get(member.type)
            if kind is None:
                continue
            entry = layers.Entry(
                number=number,
                name=member.name,
                kind=kind,
                mode=member.mode & 0o7777,
                uid=0 if has_one_owner else member.uid,
                gid=0 if has_one_owner else member.gid,
                mtime=min(max(0, int(member.mtime)), _LATEST),
                size=member.size if kind == "file" else 0,
                link=member.linkname,
                xattrs=_xattrs(member.pax_headers),
            )
            count.member(entry, plain_bytes=archive.offset)
            yield entry


def _xattrs(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    named = ((key.removeprefix(XATTR), value) for key, value in headers.items() if key.startswith(XATTR))
    return tuple(
        (name, value)
        for name, value in named
        if name.startswith(("user.", "security.")) and not name.startswith(_UNWANTED_XATTRS)
    )


def numbered(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield all members without keeping them in the archive: those of a big layer would fill the memory twice."""
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined] # not in the stubs, documented in tarfile's own source
        yield member


class _NoGlobals(dict[str, str]):
    """Global extended headers, which are read and not applied, as in containerd."""

    def __setitem__(self, key: str, value: str) -> None:
        pass

    def copy(self) -> dict[str, str]:
        return {}


class _Strict(tarfile.TarInfo):
    """A header that is an error if damaged: tarfile would take it for the archive's end."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        found = super().frombuf(buf, encoding, errors)
        if found.size < 0:
            raise layers.BadLayer(f"a layer cannot be read: a file of {found.size} bytes")
        if found.type in _EXTENSIONS and found.size > bounds.LONGEST_HEADER_BYTES:
            raise bounds.TooMuch(f"an extended header of {found.size} bytes (at most {bounds.LONGEST_HEADER_BYTES})")
        return found

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except _EMPTY as error:  # the end without its two blocks of zeros, also of an empty layer
            raise _END(*error.args) from error
        except _DAMAGED as error:
            raise layers.BadLayer(f"a layer cannot be read: {error}") from error


@contextlib.contextmanager
def members(file: str) -> Iterator[tarfile.TarFile]:
    """Open the layer as a tar stream; its first bytes, not its media type, tell the compression."""
    with Path(file).open("rb") as raw, _decompressed(raw) as plain:
        try:
            with tarfile.open(
                fileobj=plain,
                mode="r|",
                bufsize=_TAR_BUFFER,
                tarinfo=_Strict,
                encoding=ENCODING,
                errors=ERRORS,
                pax_headers=_NoGlobals(),
            ) as archive:
                yield archive
        except layers.BadLayer:
            raise
        except (tarfile.TarError, zlib.error, EOFError, ValueError, ArithmeticError, RecursionError) as error:
            raise layers.BadLayer(f"a layer cannot be read: {error}") from error


@contextlib.contextmanager
def _decompressed(raw: io.BufferedReader) -> Iterator[IO[bytes]]:
    start = raw.peek(4)[:4]
    if start[:2] == b"\x1f\x8b":
        yield io.BufferedReader(_Inflated(raw), _CHUNK)
    elif start == b"\x28\xb5\x2f\xfd":
        with _unzstd(raw) as plain:
            yield plain
    else:
        yield raw


class _Inflated(io.RawIOBase):
    """The plain bytes of a gzip file with any number of members; three times as fast as the gzip module of 3.11."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj(wbits=31)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            held = self._inflate.unconsumed_tail or self._inflate.unused_data
            if self._inflate.eof:
                held = held or self._raw.read(_CHUNK)
                if not held.strip(b"\0"):  # the end, or padding after it
                    return 0
                self._inflate = zlib.decompressobj(wbits=31)
            compressed = held or self._raw.read(_CHUNK // 4)
            if not compressed:
                raise EOFError("a gzip stream is truncated")
            plain = self._inflate.decompress(compressed, len(buffer))
            if plain:
                buffer[: len(plain)] = plain
                return len(plain)


WINDOW: Final = "--long=27"
"""128 MiB, zstd's own default maximum (RFC 8878 asks readers for 8 MiB)."""


@contextlib.contextmanager
def _unzstd(raw: io.BufferedReader) -> Iterator[IO[bytes]]:
    try:
        process = subprocess.Popen(
            ["zstd", "-dcq", WINDOW, "--", raw.name], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except FileNotFoundError as error:
        raise ToolMissing("the image has zstd layers and the program 'zstd' is not installed") from error
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        finished = False
        try:
            yield process.stdout
            finished = not process.stdout.read(1)
        finally:
            if not finished:
                process.kill()
            complaint = process.stderr.read().decode(errors="replace").strip()
        if process.wait() > 0:
            raise layers.BadLayer(f"a layer cannot be read: {complaint}")
