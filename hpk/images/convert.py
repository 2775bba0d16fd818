"""The conversion of an image's layers to one squashfs file, as a process: ``python -m hpk.images.convert``.

An ordinary user cannot unpack an image, since chown is refused. So nothing is unpacked: the layers' headers are
read once and merged in memory (:mod:`hpk.images.layers`), the layers are read a second time for the contents that
survived, and both go as one tar stream into ``mksquashfs -tar``, which writes the true owners, modes and
capabilities. (``sqfstar`` is the same program, but 4.5 misreads the compressor's level.)

The request is one JSON object on standard input, the response one on standard output::

    {"layers": ["/…/0", "/…/1"], "output": "/…/image.sqfs"}
    {"bytes": 73400320}    or    {"error": "…", "is_images_fault": true}

A separate process, because it computes for seconds and holds the whole tree of names: it neither blocks the kubelet's
event loop nor grows its memory. :mod:`hpk.images.bounds` limits what an image may use.
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
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hpk.images import archive, bounds, layers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COMPRESSION: Final = ("-comp", "zstd", "-Xcompression-level", "1", "-b", "128K")
MEMORY: Final = "128M"
"""Limit of mksquashfs's queues; its default is a quarter of the machine's memory."""
NICENESS: Final = 5
"""The control plane on the same node has priority over a conversion."""

_CHUNK: Final = 1 << 20
_TYPES: Final = {
    "directory": tarfile.DIRTYPE,
    "symlink": tarfile.SYMTYPE,
    "fifo": tarfile.FIFOTYPE,
    "file": tarfile.REGTYPE,
}


class CannotConvertError(Exception):
    """The machine lacks space or a tool. The text is for the user."""


def convert(
    layer_files: Sequence[str], *, output: str, has_one_owner: bool = False, allowed: bounds.Bounds = bounds.DEFAULT
) -> None:
    """Write the squashfs file of the layers, the lowest first.

    With ``has_one_owner`` root owns all files, for pods with a single id: a file of an id that the user namespace
    does not map cannot be changed there, nor be read unless it is open to all.

    Raises:
        layers.BadLayer: A layer is damaged, breaks the format's rules, or exceeds a bound.
        CannotConvertError: A tool is missing, or the file cannot be written; no output is left behind.
    """
    count = bounds.Count(allowed)
    tree = layers.Tree(most_nodes=allowed.members)
    for file in layer_files:
        tree.apply(archive.entries(file, has_one_owner=has_one_owner, count=count))
    tree.add_mount_points()
    try:
        with _mksquashfs(output, root=tree.root.entry) as sink:
            _write(tree, layer_files=layer_files, sink=sink)
    except BaseException:
        Path(output).unlink(missing_ok=True)
        raise


def _write(tree: layers.Tree, *, layer_files: Sequence[str], sink: IO[bytes]) -> None:
    """Write the tree as a tar stream: first entries without content, then contents in the order of the layers."""
    contents: list[dict[int, layers.Inode]] = [{} for _ in layer_files]
    names: dict[int, list[str]] = {}
    for name, node in tree.walk():
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


def _write_contents(
    file: str, *, wanted: dict[int, layers.Inode], names: dict[int, list[str]], sink: IO[bytes]
) -> None:
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
    """Return the extended header with the attributes; tarfile would add one for names as well."""
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
    """Yield the standard input of a mksquashfs that writes output; fail unless it ends well after the block."""
    argv = ["mksquashfs", "-", output, "-tar", "-noappend", *COMPRESSION, "-mem", MEMORY]
    argv += ["-processors", str(len(os.sched_getaffinity(0))), "-exit-on-error", "-quiet", "-no-progress"]
    # mksquashfs ignores a tar entry for the root directory. Before 4.6 its owner is our own uid.
    argv += ["-mkfs-time", "0", "-root-time", str(root.mtime), "-root-mode", f"{root.mode:o}"]
    argv += ["-root-uid", str(root.uid), "-root-gid", str(root.gid)]
    try:
        with bounds.no_bound_on_memory():  # it has its own bound, and a stack for each CPU
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
        # With -quiet its output cannot fill the pipe before it ends.
        said = process.stdout.read().decode(errors="replace").strip().replace("\n", "; ")
        process.stdout.close()
        status = process.wait()
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    if status == -signal.SIGXCPU:
        raise bounds.TooMuch("mksquashfs exceeded a conversion's limit of CPU time")
    if status != 0 or is_broken:
        raise CannotConvertError(f"mksquashfs cannot write the image: {said or f'exit status {status}'}")


def main() -> int:
    """Serve the one request on standard input; return 0 also if the response is an error."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.nice(NICENESS)
    os.umask(0o077)
    bounds.confine(bounds.DEFAULT)
    request = json.load(sys.stdin)
    answer: dict[str, Any]
    try:
        convert(request["layers"], output=request["output"], has_one_owner=request.get("has_one_owner", False))
        answer = {"bytes": Path(request["output"]).stat().st_size}
    except layers.BadLayer as error:
        answer = {"error": str(error), "is_images_fault": True}
    except MemoryError:
        why = f"the image cannot be converted with {bounds.DEFAULT.memory_bytes >> 20} MiB of memory"
        answer = {"error": why, "is_images_fault": True}
    except (CannotConvertError, archive.ToolMissing, OSError) as error:
        answer = {"error": str(error), "is_images_fault": False}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
