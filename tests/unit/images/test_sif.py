"""A SIF file's header is read as Apptainer writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.images import image, sif
from tests.fakes import sif as fake

if TYPE_CHECKING:
    from pathlib import Path

HERE = image.host_architecture()


def written(tmp_path: Path, content: bytes) -> Path:
    """A file with this content."""
    path = tmp_path / "x.sif"
    path.write_bytes(content)
    return path


def test_the_root_file_system_is_found(tmp_path: Path) -> None:
    """Among other objects, where the header says; started as apptainer run would."""
    path = written(tmp_path, fake.sif_bytes((0x4001, b"def", b"", b"Bootstrap: x"), (0x4003, b"labels", b"", b"{}")))
    found = sif.read(path)
    assert path.read_bytes()[found.offset : found.offset + found.size] == fake.SQUASHFS
    assert found.config == image.ImageConfig(entrypoint=sif.ENTRYPOINT, architecture=HERE)


def test_an_image_from_a_registry_is_started_like_one(tmp_path: Path) -> None:
    """Apptainer keeps its OCI config; entrypoint, command, environment and user are those."""
    config = {"Entrypoint": ["/e"], "Cmd": ["c", "ä"], "Env": ["A=b=c", "E="], "User": "u", "WorkingDir": "/w"}
    found = sif.read(written(tmp_path, fake.sif_bytes((0x4006, b"oci-config.json", b"", json.dumps(config).encode()))))
    assert found.config == image.ImageConfig(
        entrypoint=("/e",),
        command=("c", "ä"),
        env=(("A", "b=c"), ("E", "")),
        user="u",
        working_dir="/w",
        architecture=HERE,
    )


def test_an_image_built_upon_another_is_its_own(tmp_path: Path) -> None:
    """Its definition file's runscript and environment count, not the base image's entrypoint and user."""
    config = json.dumps({"Entrypoint": ["/base"], "Env": ["A=b"], "User": "1000"}).encode()
    for text, is_own in ((b"bootstrap: docker\nfrom: x\n", False), (b"From: x\n%runscript\n  run\n", True)):
        objects = (0x4001, b"def", b"", text), (0x4006, b"oci-config.json", b"", config)
        found = sif.read(written(tmp_path, fake.sif_bytes(*objects))).config
        assert found.env == (("A", "b"),)
        assert (found.entrypoint, found.user) == ((sif.ENTRYPOINT, "") if is_own else (("/base",), "1000"))


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    """A copy has the same, another root file system does not."""
    first = sif.read(written(tmp_path, fake.sif_bytes()))
    (tmp_path / "copy").mkdir()
    again = sif.read(written(tmp_path / "copy", fake.sif_bytes()))
    other = sif.read(written(tmp_path, fake.sif_bytes(root=fake.SQUASHFS[:-1] + b"!")))
    assert first.digest == again.digest != other.digest
    assert first.digest.startswith("sha256:")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a SIF file"),
        (b"hsqs" * 100, "not a SIF file"),
        (fake.sif_bytes()[:200], "no primary system partition"),
        (fake.sif_bytes()[:-10], "damaged .it is shorter"),
        (fake.sif_bytes(root=b"x" * 100), "damaged .there is no squashfs"),
        (fake.sif_bytes(fs_type=2), "ext3, not squashfs"),
        (fake.sif_bytes(fs_type=5), "encrypted, not squashfs"),
        (fake.sif_bytes(part_type=4), "no primary system partition"),
        (fake.sif_bytes((0x400B, b"", b"", b"blob"), part_type=3), "OCI-SIF"),
        (fake.sif_bytes(architecture="s390x"), f"for s390x, this machine is {HERE}"),
        (fake.sif_bytes((0x4006, b"oci-config.json", b"", b"{")), "damaged"),
        (fake.sif_bytes((0x4006, b"oci-config.json", b"", b"[1]")), "damaged"),
    ],
)
def test_what_cannot_be_mounted_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    """By name of the file, with the reason."""
    path = written(tmp_path, content)
    with pytest.raises(errors.ImageRefused, match=words) as caught:
        sif.read(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """As any image that is not there."""
    with pytest.raises(errors.ImageRefused, match=r"Cannot read the SIF file .*No such file"):
        sif.read(tmp_path / "x.sif")
