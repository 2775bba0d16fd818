"""A hostile image is refused by name; neither the converter nor the kubelet dies of it."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from hpk import errors
from hpk.images import archive, bounds, convert, layers, store
from tests.fakes import registry as fake

SMALL = bounds.Bounds(members=100, header_bytes=20_000, content_bytes=1 << 20)
HUGE = 1 << 40


def refused(tmp_path: Path, *blobs: bytes) -> str:
    """Why these layers make no image; nothing of one is left behind."""
    files = []
    for number, blob in enumerate(blobs):
        (tmp_path / str(number)).write_bytes(blob)
        files.append(str(tmp_path / str(number)))
    with pytest.raises(layers.BadLayer) as caught:
        convert.convert(files, output=str(tmp_path / "image.sqfs"), allowed=SMALL)
    assert not (tmp_path / "image.sqfs").exists()
    return str(caught.value)


def header(name: str, kind: bytes, size: int) -> bytes:
    """A header alone: what it announces does not follow."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def named(*names: str, **how: Any) -> bytes:
    """A layer of files with these names."""
    return fake.tar(*(fake.Member(name=name, **how) for name in names))


def sparse(size: int) -> bytes:
    """A file of this size, nearly all of it a hole, as GNU tar writes it."""
    pax = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.name": "s", "GNU.sparse.map": f"{size},0"}
    return named("s", pax={**pax, "GNU.sparse.size": str(size), "GNU.sparse.numblocks": "1"})


@pytest.mark.parametrize(
    ("blobs", "words"),
    [
        ([named(*map(str, range(60))), named(*map(str, range(60)))], "more than 100 files"),
        ([named("/".join(["d"] * 200))], "more than 100 files and directories"),
        ([named(*(f".wh.{number}" for number in range(101)))], "more than 100 files"),
        ([named(*(f"{number:0200}" for number in range(100)), link=200 * "l")], "names and attributes take more than"),
        ([named("a", pax={"SCHILY.xattr.user.a": "x" * 30_000})], "names and attributes take more than"),
        ([fake.layer(fake.Member(name="a", text=bytes(2 << 20)))], "unpacked files take more than 1 MiB"),
        ([sparse(HUGE)], "unpacked files take more than 1 MiB"),
        ([header("a", tarfile.XHDTYPE, 1 << 33)], "an extended header of 8589934592 bytes"),
        ([header("a", tarfile.GNUTYPE_LONGNAME, 2 << 20)], "an extended header of 2097152 bytes"),
        ([named("a" * 256)], "is longer than 255 bytes"),
        ([named("日" * 86)], "is longer than 255 bytes"),
        ([named("/".join(["d"] * 2500))], "is longer than 4095 bytes"),
        ([named("l", kind=tarfile.SYMTYPE, link="x/" * 2100)], "the target of the link 'l'"),
        ([named("a", uid=1 << 40)], "no user or group can own 'a'"),
        ([(header("p", tarfile.XHDTYPE, 0)) * 3000], "a layer cannot be read"),
        ([named("a", pax={"mtime": "nan"})], "a layer cannot be read"),
    ],
)
@pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")
def test_what_was_exceeded_is_named(tmp_path: Path, blobs: list[bytes], words: str) -> None:
    """Files, implied directories, whiteouts, names, attributes, content, holes, headers, depth."""
    assert words in refused(tmp_path, *blobs)


@pytest.mark.skipif(shutil.which("zstd") is None, reason="needs zstd")
def test_a_window_of_a_gigabyte_is_refused(tmp_path: Path) -> None:
    """What a layer needs to be unpacked is memory as well; 128 MiB are as much as zstd uses by itself."""
    layer = tmp_path / "layer"
    argv = ["zstd", "-qc", "--long=30", "--single-thread"]
    layer.write_bytes(subprocess.run(argv, input=named("a"), check=True, capture_output=True).stdout)
    with pytest.raises(layers.BadLayer, match=r"[Ww]indow size|memory"), archive.members(str(layer)) as opened:
        list(archive.numbered(opened))


def test_headers_for_all_members_are_passed_over(tmp_path: Path) -> None:
    """As containerd does; else one attribute of a megabyte would be that of a million files."""
    pax = tarfile.TarInfo.create_pax_global_header({"SCHILY.xattr.user.a": "x", "uid": "7"})
    layer = tmp_path / "layer"
    layer.write_bytes(pax + named("a", pax={"SCHILY.xattr.user.b": "y"}))
    (found,) = archive.entries(str(layer), has_one_owner=False, count=bounds.Count(bounds.DEFAULT))
    assert (found.name, found.uid, found.xattrs) == ("a", 0, (("user.b", "y"),))


def test_a_whiteout_of_the_longest_name_is_none_too_long() -> None:
    """Its own name is four bytes longer than Linux allows, and is never that of a file."""
    name = 255 * "a"
    tree = layers.Tree()
    tree.apply([layers.Entry(number=0, name=name, kind="file")])
    tree.apply([layers.Entry(number=0, name=f".wh.{name}", kind="file")])
    assert list(tree.walk()) == []


def test_the_converter_is_confined_by_the_kernel() -> None:
    """Memory, CPU time, size of files; it is the first that a shortage of memory ends. Never above what was there."""
    program = (
        "import resource as r; r.setrlimit(r.RLIMIT_CPU, (50, 60))\n"
        "from hpk.images import bounds; bounds.confine(bounds.DEFAULT)\n"
        "print([r.getrlimit(k)[0] for k in (r.RLIMIT_AS, r.RLIMIT_CPU, r.RLIMIT_CORE)],"
        " bounds.Path('/proc/self/oom_score_adj').read_text().strip())\n"
        "with bounds.no_bound_on_memory(): print(r.getrlimit(r.RLIMIT_AS)[0])\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    before = int(Path("/proc/self/oom_score_adj").read_text())
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    assert said.splitlines() == [f"[{1 << 30}, 50, 0] {min(1000, before + 500)}", str(hard)]


def test_too_little_memory_is_the_images_fault(tmp_path: Path) -> None:
    """A million names fit; what does not ends as an answer, not as a process that was killed."""
    program = (
        "import sys\nfrom hpk.images import bounds, convert, layers\n"
        "def fill(*_, **__): return bytearray(8 << 30)\n"
        "layers.Tree.apply = fill\nsys.exit(convert.main())\n"
    )
    (tmp_path / "layer").write_bytes(b"")
    request = json.dumps({"layers": [str(tmp_path / "layer")], "output": str(tmp_path / "image.sqfs")})
    done = subprocess.run([sys.executable, "-c", program], input=request, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {
        "error": "the image cannot be converted with 1024 MiB of memory",
        "is_images_fault": True,
    }


@pytest.mark.parametrize(
    ("sizes", "words"), [([1] * 1001, "has 1001 layers"), ([200 << 30, 57 << 30], "layers take 263168 MiB")]
)
def test_what_the_registry_announces_is_looked_at_first(sizes: list[int], words: str) -> None:
    """Before anything is fetched."""
    with pytest.raises(bounds.TooMuch, match=words):
        bounds.check_layers(sizes)


@pytest.mark.parametrize(
    ("status", "words", "is_images"),
    [(-24, "within 3600 s of CPU time", True), (-9, "hpk up --mem=4G", False), (1, "status 1: Oops", False)],
)
def test_a_converter_that_was_ended_is_told_of(status: int, words: str, *, is_images: bool) -> None:
    """Of the image's own fault, of this machine's, or of ours."""
    said = store._without_answer(status, b"Traceback\nOops\n")
    assert words in said["error"]
    assert said["is_images_fault"] is is_images


async def test_a_pipe_is_no_sif_file(tmp_path: Path) -> None:
    """To open it would hold a thread of the kubelet for ever, for each try of each pod."""
    os.mkfifo(tmp_path / "x.sif")
    async with store.ImageStore(tmp_path / "images") as images:
        with pytest.raises(errors.ImageRefused, match="not a regular file"):
            await images.ensure(str(tmp_path / "x.sif"), policy="IfNotPresent")
