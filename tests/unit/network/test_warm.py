"""Copies of Python beside hpk.sif: whole, of the one hpk.sif, and never in a pod's way."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog.testing

from hpk.network import sandbox, warm

CHANGED_AT = 1_700_000_000_123_456_789


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of an hpk.sif."""
    for name in ("usr/bin/python3.13", "opt/hpk/lib/grpc/_cython/cygrpc.cpython-313-x86_64-linux-gnu.so"):
        file = tmp_path / "root" / name
        file.parent.mkdir(parents=True)
        file.write_text(name)
    return tmp_path / "root"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An hpk.sif."""
    file = tmp_path / "hpk.sif"
    file.touch()
    os.utime(file, ns=(0, CHANGED_AT))
    return file


def test_copies_are_the_user_s_own_and_as_old_as_their_image(tmp_path: Path, root: Path, image: Path) -> None:
    """Each is bound over the file that it is a copy of."""
    found = warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root)
    assert found is not None
    python, library = sorted((tmp_path / "warm" / str(CHANGED_AT)).iterdir(), reverse=True)
    assert found == sandbox.Warmth(
        stamp=str(library),
        image=str(image),
        options=[
            *sandbox.bind(str(python), "/usr/bin/python3.13", "ro"),
            *sandbox.bind(str(library), f"/opt/hpk/lib/grpc/_cython/{library.name}", "ro"),
        ],
    )
    assert python.read_text() == "usr/bin/python3.13"
    assert {stat.S_IMODE(file.stat().st_mode) for file in (python, library, *python.parents[:2])} == {0o700}
    assert {file.stat().st_mtime_ns for file in (python, library)} == {CHANGED_AT}


def test_what_is_whole_is_not_copied_again(
    tmp_path: Path, root: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was cut short is, and what may not be run any more."""
    first = warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root)
    assert first is not None
    Path(first.stamp).write_text("cut")
    copied: list[str] = []
    copy = shutil.copyfile

    def noted(source: Path, to: Path) -> None:
        copied.append(source.name)
        copy(source, to)

    monkeypatch.setattr(shutil, "copyfile", noted)
    assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root) == first
    assert copied == [Path(first.stamp).name]
    assert Path(first.stamp).read_text().startswith("opt/")
    Path(first.stamp).with_name("python3.13").chmod(0o600)  # as `chmod -R` leaves it
    assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root) == first
    assert copied == [Path(first.stamp).name, "python3.13"]


def test_copies_of_another_image_go(tmp_path: Path, root: Path, image: Path) -> None:
    """A job that was made with them finds none, and starts without."""
    before = warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root)
    after = warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT + 1, root=root)
    assert before is not None
    assert after is not None
    assert (Path(before.stamp).exists(), Path(after.stamp).exists()) == (False, True)


def test_a_hpk_sif_that_was_replaced_meanwhile_has_no_copies(tmp_path: Path, root: Path, image: Path) -> None:
    """They are of the one that this program was started from, as their time says; the new one has another Python."""
    began = warm.changed_at(image)
    os.utime(image, ns=(0, CHANGED_AT + 1))
    found = warm.provide(tmp_path / "warm", image=image, changed_at=began, root=root)
    assert found is not None
    assert Path(found.stamp).stat().st_mtime_ns == CHANGED_AT


def test_where_times_are_rounded_it_is_said_that_there_are_no_copies(
    tmp_path: Path, root: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job would find that they are of its hpk.sif."""
    set_time = os.utime

    def rounded(file: Path, *, ns: tuple[int, int]) -> None:
        set_time(file, (ns[0] // 10**9, ns[1] // 10**9))

    monkeypatch.setattr(os, "utime", rounded)
    with structlog.testing.capture_logs() as logs:
        assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root) is None
    assert "cannot be set exactly" in logs[0]["error"]
    assert [file for file in (tmp_path / "warm").rglob("*") if file.is_file()] == []


def test_where_they_cannot_be_pods_start_without(
    tmp_path: Path, root: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, a file system that runs no programs, an image that is not seen, a program beside a tree.

    Beside a tree a host's own Python is none of the image's.
    """

    def full(_: object, to: Path) -> None:
        to.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=tmp_path / "empty") is None
    only_python = tmp_path / "host"
    shutil.copytree(root / "usr", only_python / "usr")
    assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=only_python) is None
    unseen = tmp_path / "none.sif"
    assert warm.provide(tmp_path / "warm", image=unseen, changed_at=warm.changed_at(unseen), root=root) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
        assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root) is None
    monkeypatch.setattr(shutil, "copyfile", full)
    assert warm.provide(tmp_path / "warm", image=image, changed_at=CHANGED_AT, root=root) is None
    assert [file for file in (tmp_path / "warm").rglob("*") if file.is_file()] == []
