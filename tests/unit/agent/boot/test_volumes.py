"""Volumes on the node, and paths that a pod controls."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from hpk.agent.boot import securejoin, volumes


def make(tmp_path: Path, volume: dict[str, Any], **options: Any) -> volumes.Volumes:
    """Make one volume below tmp_path, with tmp_path/host as the node's root."""
    (tmp_path / "host").mkdir(exist_ok=True)
    made = volumes.Volumes(
        scratch=str(tmp_path / "scratch"), private=str(tmp_path / "private"), host=str(tmp_path / "host"), **options
    )
    made.make({"name": "v", **volume})  # type: ignore[typeddict-item]
    return made


def source(made: volumes.Volumes, sub_path: str = "") -> Path:
    """The real path of what would be mounted."""
    mount: Any = {"volume": "v", "path": "/x", "sub_path": sub_path, "read_only": False}
    path, descriptor = made.source(mount, container="c")
    real = Path(path).resolve()
    if descriptor is not None:
        os.close(descriptor)
    return real


def file(path: str, data: bytes = b"", mode: int = 0o644) -> dict[str, Any]:
    """A file of a plan."""
    return {"path": path, "mode": mode, "data": base64.b64encode(data).decode()}


def test_an_empty_dir_is_open_to_all(tmp_path: Path) -> None:
    """0777 whatever the umask, so that containers of any user can write."""
    made = make(tmp_path, {"kind": "empty_dir"})
    assert stat.S_IMODE(source(made).stat().st_mode) == 0o777


def test_files_have_the_kubelet_s_layout_and_exact_modes(tmp_path: Path) -> None:
    """A dated directory behind ..data, links to it, modes and bytes as asked."""
    made = make(tmp_path, {"kind": "files", "files": [file("a/b", b"\0\xff", 0o400), file("x", b"no newline")]})
    root = source(made)
    assert str((root / "x").readlink()) == "..data/x"
    assert str((root / "a").readlink()) == "..data/a"
    assert (root / "a/b").read_bytes() == b"\0\xff"
    assert stat.S_IMODE((root / "a/b").stat().st_mode) == 0o400


def test_files_are_replaced_all_at_once(tmp_path: Path) -> None:
    """A second write moves ..data over; old links stay valid."""
    made = make(tmp_path, {"kind": "files", "files": [file("x", b"old")]})
    root = source(made)
    volumes.write_files(str(root), [file("x", b"new"), file("y", b"more")], group=None)  # type: ignore[list-item]
    assert (tmp_path / "private/files/v/x").read_bytes() == b"new"
    assert (tmp_path / "private/files/v/y").read_bytes() == b"more"


def test_a_volume_that_was_renewed_keeps_nothing_of_before(tmp_path: Path) -> None:
    """Neither the old token nor what a renewal that failed half-way has left; a volume of no pod is refused."""
    made = make(tmp_path, {"kind": "files", "files": [file("token", b"old")]})
    root = source(made)
    (root / "..data_tmp").symlink_to("nowhere")
    renewed: Any = {"name": "v", "kind": "files", "files": [file("token", b"new")]}
    made.renew(renewed)
    assert (root / "token").read_bytes() == b"new"
    assert sorted(path.name for path in root.iterdir() if not path.is_symlink()) == [(root / "..data").readlink().name]
    with pytest.raises(LookupError):
        made.renew({"name": "other", "kind": "files", "files": []})


def test_a_missing_sub_path_becomes_a_directory(tmp_path: Path) -> None:
    """Of the volume's own mode; a file stays a file."""
    made = make(tmp_path, {"kind": "empty_dir"})
    root = source(made)
    assert source(made, "a/b").is_dir()
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o777
    (root / "file").write_text("x")
    assert source(made, "file") == root / "file"


def test_links_within_a_volume_are_followed(tmp_path: Path) -> None:
    """To directories and files, by way of others; a hostPath volume's own absolute name is within it."""
    made = make(tmp_path, {"kind": "empty_dir"})
    root = source(made)
    (root / "releases/3").mkdir(parents=True)
    (root / "releases/3/file").touch()
    (root / "current").symlink_to("releases/3")
    (root / "releases/back").symlink_to("../current/file")
    assert source(made, "current") == root / "releases/3"
    assert source(made, "current/file") == root / "releases/3/file"
    assert source(made, "releases/back") == root / "releases/3/file"
    (tmp_path / "host/data/3").mkdir(parents=True)
    (tmp_path / "host/data/current").symlink_to("/data/3")
    shared = make(tmp_path, {"kind": "host_path", "host_path": "/data"})
    assert source(shared, "current") == tmp_path / "host/data/3"
    shared.close()


@pytest.mark.parametrize(
    "target", ["/etc", "../../../../etc", "..", "a/../..", "/", "missing", "../v2", "/data2", "link", "file/x"]
)
@pytest.mark.parametrize("below", ["", "/passwd"])
@pytest.mark.parametrize("kind", ["empty_dir", "host_path"])
def test_a_sub_path_that_leads_out_or_nowhere_is_refused(tmp_path: Path, target: str, below: str, kind: str) -> None:
    """A link that a container has made shows nothing of the node and makes nothing; the words are the kubelet's."""
    made = make(tmp_path, {"kind": kind, "host_path": "/data"})
    root = source(made)
    (root / "file").touch()
    (root / "link").symlink_to(target)
    with pytest.raises(volumes.SubPathFailed) as caught:
        source(made, "link" + below)
    assert str(caught.value) == 'failed to prepare subPath for volumeMount "v" of container "c"'
    assert sorted(one.name for one in root.iterdir()) == ["file", "link"]
    made.close()


def test_a_sub_path_with_dots_is_refused(tmp_path: Path) -> None:
    """The API server refuses it too."""
    with pytest.raises(volumes.SubPathFailed):
        source(make(tmp_path, {"kind": "empty_dir"}), "a/../../b")


def test_links_that_never_end_are_an_error(tmp_path: Path) -> None:
    """A loop of links does not hang the agent."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="too many links"):
        securejoin.hold(str(tmp_path), "loop")


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe in place of passwd does not hang the agent; a missing file is empty."""
    os.mkfifo(tmp_path / "passwd")
    assert securejoin.read(str(tmp_path), "passwd") == b""
    assert securejoin.read(str(tmp_path), "missing") == b""


@pytest.mark.parametrize("kind", ["", "DirectoryOrCreate"])
def test_a_missing_host_path_is_made(tmp_path: Path, kind: str) -> None:
    """Without a type, or with one that says so."""
    make(tmp_path, {"kind": "host_path", "host_path": "/data/x", "host_path_type": kind}).close()
    assert (tmp_path / "host/data/x").is_dir()


def test_a_host_file_is_made(tmp_path: Path) -> None:
    """FileOrCreate makes an empty file in a directory that exists."""
    make(tmp_path, {"kind": "host_path", "host_path": "/x", "host_path_type": "FileOrCreate"}).close()
    assert (tmp_path / "host/x").read_bytes() == b""


@pytest.mark.parametrize(
    ("path", "kind", "text"),
    [
        ("/file", "Directory", "hostPath type check failed: /file is not a directory, it's a File"),
        ("/file", "DirectoryOrCreate", "hostPath type check failed: /file is not a directory, it's a File"),
        ("/", "Socket", "hostPath type check failed: / is not a socket file, it's a Directory"),
        ("/gone", "Directory", "hostPath type check failed, /gone is not a directory"),
    ],
)
def test_a_wrong_type_is_a_failed_mount_in_the_kubelet_s_words(tmp_path: Path, path: str, kind: str, text: str) -> None:
    """The event's text is what users know from elsewhere."""
    (tmp_path / "host").mkdir()
    (tmp_path / "host/file").touch()
    with pytest.raises(volumes.MountFailed) as caught:
        make(tmp_path, {"kind": "host_path", "host_path": path, "host_path_type": kind})
    assert str(caught.value).startswith(f'MountVolume.SetUp failed for volume "v" : {text}')


def test_links_on_the_host_stay_on_the_host(tmp_path: Path) -> None:
    """An absolute link below the node's root means the node's root, not the sandbox's."""
    (tmp_path / "host/real").mkdir(parents=True)
    (tmp_path / "host/link").symlink_to("/real")
    made = make(tmp_path, {"kind": "host_path", "host_path": "/link", "host_path_type": "Directory"})
    assert source(made) == tmp_path / "host/real"
    made.close()


def test_fs_group_owns_what_is_made(tmp_path: Path) -> None:
    """emptyDir and files belong to the pod's fsGroup, which can read them."""
    group = os.getgid()
    made = make(tmp_path, {"kind": "files", "files": [file("x", b"", 0o400)]}, group=group)
    status = (source(made) / "x").stat()
    assert (status.st_gid, stat.S_IMODE(status.st_mode)) == (group, 0o440)


def test_fs_group_changes_no_host_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a kubelet, so fsGroupChangePolicy has no existing files to be about (hpk/pods/fields.py)."""
    changed: list[object] = []
    monkeypatch.setattr(os, "chown", lambda *given: changed.append(given))
    monkeypatch.setattr(os, "fchown", lambda *given: changed.append(given))
    (tmp_path / "host/data").mkdir(parents=True)
    made = make(tmp_path, {"kind": "host_path", "host_path": "/data", "host_path_type": "Directory"}, group=5)
    assert (source(made), changed) == (tmp_path / "host/data", [])
    made.close()


def test_a_token_belongs_to_its_user_unless_there_is_one_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all users of the pod are the same, every file is theirs already."""
    owners: list[int] = []
    monkeypatch.setattr(os, "fchown", lambda _descriptor, uid, _gid: owners.append(uid))
    token = file("token", b"t", 0o600) | {"uid": 1000}
    made = make(tmp_path, {"kind": "files", "files": [token, file("ca.crt")]})
    assert owners == [1000]
    assert stat.S_IMODE((source(made) / "token").stat().st_mode) == 0o600
    (tmp_path / "one").mkdir()
    make(tmp_path / "one", {"kind": "files", "files": [token]}, has_one_id=True)
    assert owners == [1000]
