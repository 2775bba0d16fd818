"""Records: whole or missing, and there after a power cut."""

from __future__ import annotations

import concurrent.futures
import os
import stat
import threading
from typing import TYPE_CHECKING

import pytest

from hpk import jobdir

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("torn", [b"", b'{"job_id": "1', b"\0\0\0\0", b"[]", b"null", b'"17"', b"\xff\xfe{}"])
def test_a_record_that_cannot_be_read_is_missing(tmp_path: Path, torn: bytes) -> None:
    """As a power cut may leave it; only a file system that does not say is an error."""
    path = tmp_path / "record.json"
    assert jobdir.read_json(str(path)) is None
    path.write_bytes(torn)
    assert jobdir.read_json(str(path)) is None
    jobdir.write_json(str(path), {"a": 1})
    assert jobdir.read_json(str(path)) == {"a": 1}
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        jobdir.read_json(str(path))
    assert jobdir.peek_json(str(path)) is None


def test_bytes_that_are_no_text_come_back(tmp_path: Path) -> None:
    """A plan holds the values of a Secret; whatever they are, it is no torn record."""
    value = {"env": [["K", b"\xff\0".decode("utf-8", "surrogateescape")], ["U", "\u65e5"]]}
    jobdir.write_json(str(tmp_path / "spec.json"), value)
    assert jobdir.read_json(str(tmp_path / "spec.json")) == value


@pytest.mark.parametrize(("is_durable", "steps"), [(True, ["file", "rename", "directory"]), (False, ["rename"])])
def test_what_must_survive_a_power_cut_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_durable: bool,  # noqa: FBT001 - one of two cases
    steps: list[str],
) -> None:
    """First the content, then the name, then the directory that holds the name."""
    done: list[str] = []
    rename, sync = os.rename, os.fsync

    def fsync(descriptor: int) -> None:
        done.append("directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def renamed(old: str, new: str) -> None:
        done.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", renamed)
    jobdir.write_json(str(tmp_path / "record.json"), {"a": 1}, is_durable=is_durable)
    assert done == steps


def test_a_disk_that_cannot_keep_it_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing half-written is left beside it either."""
    path = tmp_path / "record.json"
    jobdir.write_json(str(path), {"a": 1})

    def full(_: int) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="quota"):
        jobdir.write_json(str(path), {"a": 2})
    assert jobdir.read_json(str(path)) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_two_threads_may_write_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for two containers of a pod with one image; each writes a file of its own until it is whole.

    So do two programs in containers, whose PID namespaces give them the same numbers.
    """
    monkeypatch.setattr(os, "getpid", lambda: 15)
    monkeypatch.setattr(threading, "get_native_id", lambda: 15)
    monkeypatch.setattr("_thread.get_native_id", lambda: 15)
    both = threading.Barrier(2, timeout=60)
    sync = os.fsync

    def slow(descriptor: int) -> None:
        sync(descriptor)
        both.wait()

    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(jobdir, "sync_directory", lambda _path: None)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: jobdir.write_bytes(str(tmp_path / "use"), b"pod"), range(2)))
    assert (tmp_path / "use").read_bytes() == b"pod"
    assert [file.name for file in tmp_path.iterdir()] == ["use"]
