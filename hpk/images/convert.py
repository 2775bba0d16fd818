"""Flatten an image's layers into one squashfs file, as a process of its own: ``python -m hpk.images.convert``.

An ordinary user cannot unpack an image: chown is refused.  So nothing is unpacked.  The layers' headers are read
once and merged in memory (:mod:`hpk.images.layers`), the layers are read a second time for the contents that
survived, and both go as one tar stream into ``mksquashfs -tar``, which writes the true owners, modes and
capabilities.  (``sqfstar`` is the same program, but 4.5 misreads the compressor's level.)

The request is one JSON object on standard input, the answer one on standard output::

    {"layers": ["/…/0", "/…/1"], "output": "/…/image.sqfs"}
    {"files": 3120, "bytes": 73400320, "seconds": 1.2}    or    {"error": "…", "is_images_fault": true}

It is a process and not a thread because it computes for seconds and holds the whole tree of names: the kubelet's
event loop must not wait for it, nor its memory grow.  What an image may take is in :mod:`hpk.images.bounds`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

from hpk.images import archive, bounds, layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMPRESSION: Final = ("-comp", "zstd", "-Xcompression-level", "1", "-b", "128K")
MEMORY: Final = "128M"
"""What mksquashfs may use for its queues; its default is a quarter of the machine's memory."""
NICENESS: Final = 5
"""The control plane beside us is more urgent than a conversion."""

_CHUNK: Final = 1 << 20
_TYPES: Final = {
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
    "file": tarfile.REGTYPE,
}


class CannotConvertError(Exception):
    """The machine could not do it: no space, no tool.  The text is fit for the user."""


class Result(NamedTuple):
    """What became of a conversion; ``size_bytes`` is the squashfs file's."""

    files: int
    size_bytes: int
    seconds: float


def convert(
    layer_files: Sequence[str], *, output: str, has_one_owner: bool = False, allowed: bounds.Bounds = bounds.DEFAULT
) -> Result:
    """Write the squashfs file that the layers, the lowest first, add up to.

    With ``has_one_owner`` all files are root's, for pods that have one id only: what belongs to an id that a user
    namespace does not have can neither be changed in it nor, if it is not open to all, be read.

    Raises:
        layers.BadLayer: A layer is damaged, breaks the format's rules, or has more than is allowed.
        CannotConvertError: A tool is missing, or the file cannot be written; no output is left behind.
    """
    started = time.monotonic()
    count = bounds.Count(allowed)
    tree = layers.Tree(most_nodes=allowed.members)
    for file in layer_files:
        tree.apply(archive.entries(file, has_one_owner=has_one_owner, count=count))
    tree.add_mount_points()
    try:
        with _mksquashfs(output, root=tree.root.entry) as sink:
            files = _write(tree, layer_files=layer_files, sink=sink)
        size_bytes = Path(output).stat().st_size
    except BaseException:
        Path(output).unlink(missing_ok=True)
        raise
    return Result(files=files, size_bytes=size_bytes, seconds=time.monotonic() - started)


def _write(tree: layers.Tree, *, layer_files: Sequence[str], sink: IO[bytes]) -> int:
    """Send the tree as a tar stream: what needs no content first, then the contents in the order of the layers."""
    contents: list[dict[int, layers.Node]] = [{} for _ in layer_files]
    names: dict[int, list[str]] = {}
    files = 0
    for name, node in tree.walk():
        files += 1
        entry = node.entry
        if node.children is None:
            others = names.setdefault(id(node), [])
            others.append(name)
            if len(others) > 1:
                continue
            if entry.kind == "file" and entry.size:
                contents[node.layer][entry.number] = node
                continue
        sink.write(_header(name, entry))
    for file, wanted in zip(layer_files, contents, strict=True):
        _write_contents(file, wanted=wanted, names=names, sink=sink)
    for first, *others in names.values():
        for other in others:
            sink.write(_hard_link(other, target=first))
    sink.write(bytes(2 * tarfile.BLOCKSIZE))
    return files


def _write_contents(file: str, *, wanted: dict[int, layers.Node], names: dict[int, list[str]], sink: IO[bytes]) -> None:
    if not wanted:
        return
    last = max(wanted)
    with archive.members(file) as opened:
        for number, member in enumerate(archive.numbered(opened)):
            node = wanted.get(number)
            if node is not None:
                sink.write(_header(names[id(node)][0], node.entry))
                content = opened.extractfile(member)
                assert content is not None
                shutil.copyfileobj(content, sink, _CHUNK)
                sink.write(bytes(-member.size % tarfile.BLOCKSIZE))
            if number == last:
                return


def _header(name: str, entry: layers.Entry) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = _TYPES[entry.kind]
    info.mode, info.uid, info.gid, info.mtime = entry.mode, entry.uid, entry.gid, entry.mtime
    info.size = entry.size
    info.linkname = entry.link if entry.kind == "symlink" else ""
    return _pax(entry.xattrs) + info.tobuf(tarfile.GNU_FORMAT, archive.ENCODING, archive.ERRORS)


def _hard_link(name: str, *, target: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.LNKTYPE, target
    return info.tobuf(tarfile.GNU_FORMAT, archive.ENCODING, archive.ERRORS)


def _pax(xattrs: tuple[tuple[str, str], ...]) -> bytes:
    """The extended header that carries attributes; written here because tarfile would add one for names as well."""
    if not xattrs:
        return b""
    records = b""
    for name, value in xattrs:
        body = f" {archive.XATTR}{name}={value}\n".encode(archive.ENCODING, archive.ERRORS)
        length = len(body) + len(str(len(body)))
        length = len(body) + len(str(length))
        records += str(length).encode() + body
    info = tarfile.TarInfo("attributes")
    info.type, info.size = tarfile.XHDTYPE, len(records)
    padding = bytes(-len(records) % tarfile.BLOCKSIZE)
    return info.tobuf(tarfile.USTAR_FORMAT, archive.ENCODING, archive.ERRORS) + records + padding


@contextlib.contextmanager
def _mksquashfs(output: str, *, root: layers.Entry) -> Iterator[IO[bytes]]:
    """The standard input of a mksquashfs that writes output; after the block it has ended well, or it is an error."""
    argv = ["mksquashfs", "-", output, "-tar", "-noappend", *COMPRESSION, "-mem", MEMORY]
    argv += ["-processors", str(len(os.sched_getaffinity(0))), "-exit-on-error", "-quiet", "-no-progress"]
    # The root directory has no entry in a tar stream that mksquashfs would heed.  Its owner is our own uid before 4.6.
    argv += ["-mkfs-time", "0", "-root-time", str(root.mtime), "-root-mode", f"{root.mode:o}"]
    argv += ["-root-uid", str(root.uid), "-root-gid", str(root.gid)]
    try:
        with bounds.no_bound_on_memory():  # it has one of its own, and a stack for each CPU
            process = subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=_CHUNK
            )
    except FileNotFoundError as error:
        raise CannotConvertError("the program 'mksquashfs' is not installed (squashfs-tools 4.6 or later)") from error
    assert process.stdin is not None
    assert process.stdout is not None
    is_broken = False
    try:
        yield process.stdin
        process.stdin.close()
    except BrokenPipeError:
        is_broken = True
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    except BaseException:
        process.kill()
        raise
    finally:
        # Quiet as told, it says nothing that could fill the pipe before it ends.
        said = process.stdout.read().decode(errors="replace").strip().replace("\n", "; ")
        process.stdout.close()
        status = process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if status == -signal.SIGXCPU:
        raise bounds.TooMuch("mksquashfs took more CPU time than a conversion may")
    if status != 0 or is_broken:
        raise CannotConvertError(f"mksquashfs cannot write the image: {said or f'exit status {status}'}")


def main() -> int:
    """Serve the one request on standard input; 0 also when the answer is an error."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(NICENESS)
    os.umask(0o077)
    allowed = bounds.DEFAULT
    bounds.confine(allowed)
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        has_one_owner = request.get("has_one_owner", False)
        result = convert(request["layers"], output=request["output"], has_one_owner=has_one_owner)
        answer = {"files": result.files, "bytes": result.size_bytes, "seconds": result.seconds}
    except layers.BadLayer as error:
        answer = {"error": str(error), "is_images_fault": True}
    except MemoryError:
        answer = {"error": bounds.too_much_memory(allowed), "is_images_fault": True}
    except (CannotConvertError, archive.ToolMissing, OSError) as error:
        answer = {"error": str(error), "is_images_fault": False}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
