"""A converted image has the files, owners, modes, links and attributes that its layers say."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import stat
import struct
import subprocess
import tarfile
from typing import TYPE_CHECKING

import pytest

from hpk.images import convert, layers
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def mksquashfs_version() -> tuple[int, ...]:
    """Of the program that is installed; (0,) if there is none."""
    if shutil.which("mksquashfs") is None:
        return (0,)
    said = subprocess.run(["mksquashfs", "-version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    assert found is not None
    return tuple(int(part) for part in found.groups())


pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

LISTED = re.compile(rb"(\S{10}) (\d+)/(\d+) +(\d+) \S+ \S+ squashfs-root/?(.*)")
CAPABILITY = struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0)  # cap_net_bind_service+ep


def converted(tmp_path: Path, *blobs: bytes, has_one_owner: bool = False) -> Path:
    """The squashfs file of these layers."""
    files = []
    for number, blob in enumerate(blobs):
        file = tmp_path / f"layer-{number}"
        file.write_bytes(blob)
        files.append(str(file))
    output = tmp_path / "image.sqfs"
    convert.convert(files, output=str(output), has_one_owner=has_one_owner)
    return output


def listing(file: Path) -> dict[str, tuple[str, int, int]]:
    """Mode, uid and gid by name; without the directories that every image gets."""
    said = subprocess.run(["unsquashfs", "-lln", str(file)], check=True, capture_output=True).stdout
    found = {}
    for line in said.splitlines():
        if match := LISTED.fullmatch(line):
            found[os.fsdecode(match[5])] = (match[1].decode(), int(match[2]), int(match[3]))
    return {name: value for name, value in found.items() if name not in layers.MOUNT_POINTS}


def unpacked(file: Path, *names: str) -> Path:
    """The directory that the file, or these names of it, unpack to."""
    target = file.parent / "root"
    argv: Sequence[str] = ["unsquashfs", "-no-progress", "-d", str(target), str(file), *names]
    subprocess.run(argv, check=True, capture_output=True)
    return target


def test_owners_modes_and_kinds_are_true(tmp_path: Path) -> None:
    """Every owner is kept although the user could not chown; devices are left out."""
    file = converted(
        tmp_path,
        fake.layer(
            fake.directory("./", mode=0o711),
            fake.directory("home/u/", mode=0o2750, uid=1000, gid=100),
            fake.Member(name="home/u/x", text=b"x", mode=0o4755, uid=1000, gid=4_000_000_000),
            fake.Member(name="empty", mode=0o600, uid=65534, gid=65534),
            fake.symlink("l", "home/u/x"),
            fake.Member(name="p", kind=tarfile.FIFOTYPE, mode=0o620),
            fake.Member(name="zero", kind=tarfile.CHRTYPE),
        ),
    )
    assert listing(file) == {
        "": ("drwx--x--x", 0, 0),
        "home": ("drwxr-xr-x", 0, 0),
        "home/u": ("drwxr-s---", 1000, 100),
        "home/u/x": ("-rwsr-xr-x", 1000, 4_000_000_000),
        "empty": ("-rw-------", 65534, 65534),
        "l -> home/u/x": ("lrwxrwxrwx", 0, 0),
        "p": ("prw--w----", 0, 0),
    }


def test_one_owner_has_everything_where_there_is_one_id(tmp_path: Path) -> None:
    """Modes stay; files of ids that a pod does not have would be closed to it."""
    file = converted(
        tmp_path,
        fake.layer(
            fake.directory("home/u/", mode=0o2750, uid=1000, gid=100), fake.Member(name="x", mode=0o600, uid=7, gid=7)
        ),
        has_one_owner=True,
    )
    found = listing(file)
    assert (found["home/u"], found["x"]) == (("drwxr-s---", 0, 0), ("-rw-------", 0, 0))


@pytest.mark.skipif(mksquashfs_version() < (4, 6), reason="mksquashfs ignores -root-uid")
def test_the_root_has_its_own_owner(tmp_path: Path) -> None:
    """The entry ``./`` says whose the root directory is."""
    file = converted(tmp_path, fake.layer(fake.directory("./", mode=0o711, uid=3, gid=4)))
    assert listing(file) == {"": ("drwx--x--x", 3, 4)}


def test_layers_merge(tmp_path: Path) -> None:
    """Whiteouts, opaque directories and replaced files; a directory's last owner counts."""
    file = converted(
        tmp_path,
        fake.layer(
            fake.directory("d/"),
            fake.Member(name="d/a", text=b"old a"),
            fake.Member(name="d/b", text=b"old b"),
            fake.Member(name="gone", text=b"gone"),
            fake.Member(name="o/hidden", text=b"hidden"),
        ),
        fake.layer(
            fake.directory("d/", uid=7),
            fake.Member(name="d/a", text=b"new a", mode=0o755),
            fake.Member(name=".wh.gone"),
            fake.Member(name="o/.wh..wh..opq"),
            fake.Member(name="o/shown", text=b"shown"),
        ),
    )
    assert listing(file) == {
        "": ("drwxr-xr-x", 0, 0),
        "d": ("drwxr-xr-x", 7, 0),
        "d/a": ("-rwxr-xr-x", 0, 0),
        "d/b": ("-rw-r--r--", 0, 0),
        "o": ("drwxr-xr-x", 0, 0),
        "o/shown": ("-rw-r--r--", 0, 0),
    }
    root = unpacked(file, "d")
    assert ((root / "d/a").read_bytes(), (root / "d/b").read_bytes()) == (b"new a", b"old b")


def test_hard_links_survive_what_happens_to_their_target(tmp_path: Path) -> None:
    """Names of one inode stay one inode, and keep the content of a target that a later layer replaced."""
    file = converted(
        tmp_path,
        fake.layer(
            fake.Member(name="z", text=b"content"),
            fake.hard_link("a", "z"),
            fake.hard_link("m", "./z"),
            fake.symlink("s", "a"),
            fake.hard_link("t", "s"),
        ),
        fake.layer(fake.Member(name="z", text=b"other")),
    )
    root = unpacked(file, "a", "m", "z", "s", "t")
    assert [(root / name).read_bytes() for name in "amz"] == [b"content", b"content", b"other"]
    assert (root / "a").stat().st_ino == (root / "m").stat().st_ino
    assert (root / "t").readlink().name == "a"


def test_names_are_bytes(tmp_path: Path) -> None:
    """Names that are not UTF-8, have newlines, or are long come out as they went in, links' texts as well."""
    odd = os.fsdecode(b"caf\xe9")
    long = "/".join(["x" * 100] * 4) + "/ü"
    file = converted(
        tmp_path,
        fake.layer(
            fake.Member(name=odd, text=b"1"),
            fake.symlink("link", odd),
            fake.Member(name="new\nline"),
            fake.Member(name=long, text=b"2"),
            fake.symlink("far", "y" * 200),
            fake.hard_link("to-" + odd, odd),
        ),
    )
    root = unpacked(file)
    assert os.fsencode((root / "link").readlink()) == b"caf\xe9"
    assert (root / odd).read_bytes() == (root / ("to-" + odd)).read_bytes() == b"1"
    assert (root / long).read_bytes() == b"2"
    assert str((root / "far").readlink()) == "y" * 200
    assert (root / "new\nline").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may unpack a capability")
def test_capabilities_survive(tmp_path: Path) -> None:
    """``security.capability`` is binary and goes through whole; marks of another overlay do not."""
    value = CAPABILITY.decode("utf-8", "surrogateescape")
    odd = os.fsdecode(b"p\xefng")
    pax = {
        "SCHILY.xattr.security.capability": value,
        "SCHILY.xattr.user.overlay.opaque": "y",
        "SCHILY.xattr.trusted.overlay.opaque": "y",
        "SCHILY.xattr.user.kept": "a=b\nc",
    }
    file = converted(tmp_path, fake.layer(fake.Member(name=odd, text=b"#!", mode=0o755, pax=pax)))
    # A file of its own: some versions take "-" for a name, others for the standard output.
    listing = tmp_path / "listing"
    subprocess.run(["unsquashfs", "-pf", str(listing), str(file)], check=True, capture_output=True)
    said = listing.read_bytes()
    path = unpacked(file) / odd
    assert os.getxattr(path, "security.capability") == CAPABILITY
    assert os.getxattr(path, "user.kept") == b"a=b\nc"
    assert b"overlay" not in said


def test_all_compressions_are_read(tmp_path: Path) -> None:
    """Plain, gzip of several members with padding, and zstd, told apart by their first bytes."""
    one, two, three = (fake.tar(fake.Member(name=name, text=name.encode() * 100_000)) for name in "abc")
    several = gzip.compress(two[:1000]) + gzip.compress(two[1000:]) + bytes(512)
    zstd = subprocess.run(["zstd", "-c"], input=three, check=True, capture_output=True).stdout
    root = unpacked(converted(tmp_path, one, several, zstd))
    assert [(root / name).read_bytes() for name in "abc"] == [name.encode() * 100_000 for name in "abc"]


def test_sparse_files_have_their_full_content(tmp_path: Path) -> None:
    """GNU tar's sparse files are filled with zeros again."""
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "sparse").open("wb") as sparse:
        sparse.seek(1 << 20)
        sparse.write(b"end")
    for form in ("gnu", "posix"):
        argv = ["tar", "-C", str(tmp_path / "in"), f"--format={form}", "-Sc", "sparse"]
        layer = subprocess.run(argv, check=True, capture_output=True).stdout
        assert len(layer) < 1 << 20
        root = unpacked(converted(tmp_path, layer))
        assert (root / "sparse").read_bytes() == bytes(1 << 20) + b"end"
        shutil.rmtree(root)


def test_an_image_without_layers_has_its_mount_points(tmp_path: Path) -> None:
    """Also one whose only layer is empty; nothing else is invented."""
    root = unpacked(converted(tmp_path, b"", fake.layer()))
    assert sorted(path.name for path in root.iterdir()) == ["dev", "etc", "proc", "sys"]
    assert stat.S_IMODE((root / "etc").stat().st_mode) == 0o755


@pytest.mark.skipif(mksquashfs_version() < (4, 6), reason="mksquashfs' root is as old as the run: no -root-time")
def test_the_same_layers_give_the_same_bytes(tmp_path: Path) -> None:
    """Two hosts that convert the same image may overwrite each other's file."""
    layer = fake.layer(fake.Member(name="a", text=b"a"), fake.directory("b/"), fake.hard_link("c", "a"))
    first = converted(tmp_path, layer).read_bytes()
    assert converted(tmp_path, layer).read_bytes() == first


@pytest.mark.parametrize(
    "blob",
    [
        b"not a tar at all" * 100,
        fake.layer(fake.Member(name="a", text=b"a" * 3000))[:60],
        fake.tar(fake.Member(name="a"))[:512] + b"garbage!" * 64,
        fake.tar(fake.Member(name="a", text=b"a" * 3000))[:1024],
        b"\x28\xb5\x2f\xfd damaged",
    ],
    ids=["no-tar", "cut-gzip", "bad-header", "cut-tar", "bad-zstd"],
)
def test_damage_is_the_images_fault(tmp_path: Path, blob: bytes) -> None:
    """A layer that is cut short or damaged makes no image, not a smaller one."""
    with pytest.raises(layers.BadLayer):
        converted(tmp_path, blob)
    assert not (tmp_path / "image.sqfs").exists()


def test_a_full_disk_is_not_the_images_fault(tmp_path: Path) -> None:
    """What mksquashfs cannot write is said in its words, and nothing is left behind."""
    layer = tmp_path / "layer"
    layer.write_bytes(fake.tar(fake.Member(name="a", text=os.urandom(1 << 20))))
    with pytest.raises(convert.CannotConvertError, match="mksquashfs cannot write the image: "):
        convert.convert([str(layer)], output=str(tmp_path / "no" / "such" / "directory"))
