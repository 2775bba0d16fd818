"""`hpk prune` removes what no pod uses, and says what it did and why the rest stays."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from hpk import config
from hpk.cli import prune
from hpk.images import cache, image, reference, uses


def add(directory: Path, letter: str, *, is_pinned: bool = False, age: float = 10_000.0) -> str:
    """An image under a name of its own; its key."""
    images, manifest = cache.Cache(directory), f"sha256:{letter * 64}"
    directory.mkdir(parents=True, exist_ok=True)
    made = directory / "made"
    made.write_bytes(b"hsqs" + bytes(1_000_000))
    images.add(manifest, converted=made, config=image.ImageConfig())
    wanted: Any = reference.parse(f"ctl:5000/{letter}:1")
    images.link(wanted, digest=manifest, manifest=manifest)
    stored = images.find(wanted)
    assert stored is not None
    if is_pinned:
        images.pin(wanted, stored)
    images.touch(stored.file.stem)
    os.utime(directory / f"{stored.file.stem}.used", (time.time() - age, time.time() - age))
    return stored.file.stem


@pytest.fixture
def settings(tmp_path: Path) -> config.Settings:
    """Images of both kinds: free, pulled by hand, in use, and new."""
    made = config.load(environment={"HPK_STATE": str(tmp_path)})
    images = made.images_directory
    add(images, "a")
    add(images, "b", is_pinned=True)
    used = add(images, "c")
    pod = tmp_path / "pods/uid"
    pod.mkdir(parents=True)
    uses.Uses(images).add(used, pod)
    add(images, "d", age=5)
    add(images / "one-id", "e")
    return made


def run(settings: config.Settings, capsys: pytest.CaptureFixture[str], **how: bool) -> str:
    """What it prints."""
    wanted = {"is_dry": False, "is_json": False, "also_pinned": False, **how}
    assert prune.run(settings, **wanted, sleep=lambda _: None) == 0
    return capsys.readouterr().out


def test_what_no_pod_uses_goes(settings: config.Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Each image by its name, with its size, and the reason why it stays."""
    said = run(settings, capsys)
    assert "removed  ctl:5000/a:1  1.0 MB  (last used " in said
    assert "kept  ctl:5000/b:1  1.0 MB  (pulled by hpk pull; --all removes it too)" in said
    assert "kept  ctl:5000/c:1  1.0 MB  (in use by 1 pod)" in said
    assert "kept  ctl:5000/d:1  1.0 MB  (used a moment ago)" in said
    assert said.endswith("2 of 5 images, 2.0 MB\n")
    assert run(settings, capsys).endswith("0 of 3 images, 0.0 MB\n")
    assert "removed  ctl:5000/b:1" in run(settings, capsys, also_pinned=True)


@pytest.mark.parametrize(("minutes", "reason"), [(10, "in use by 2 pods"), (20, "in use by 1 pod")])
def test_a_pod_without_a_directory_counts_while_it_is_prepared(
    settings: config.Settings, capsys: pytest.CaptureFixture[str], minutes: int, reason: str
) -> None:
    """Its kubelet touches the file every five minutes; a pod that a killed kubelet has left behind counts no more."""
    images = settings.images_directory
    (use,) = (images / "uses").iterdir()
    image = use.name.partition("@")[0]
    uses.Uses(images).add(image, Path(settings.directory.pods) / "gone")
    at = time.time() - minutes * 60
    os.utime(images / "uses" / f"{image}@gone", (at, at))
    assert f"kept  ctl:5000/c:1  1.0 MB  ({reason})" in run(settings, capsys, is_dry=True)


def test_a_dry_run_removes_nothing(settings: config.Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """It tells what a run would do, also to programs."""
    assert "would remove  ctl:5000/a:1" in run(settings, capsys, is_dry=True)
    found = json.loads(run(settings, capsys, is_dry=True, is_json=True))
    assert [one["names"] for one in found["removed"]] == [["ctl:5000/a:1"], ["ctl:5000/e:1"]]
    assert (found["dryRun"], found["removed"][0]["digest"]) == (True, f"sha256:{'a' * 64}")
    assert {one["names"][0][9]: one["reason"][:6] for one in found["kept"]} == {
        "b": "pulled",
        "c": "in use",
        "d": "used a",
    }
    assert len(json.loads(run(settings, capsys, is_json=True))["removed"]) == 2


def test_a_name_in_two_directories_is_told_apart(settings: config.Settings, capsys: pytest.CaptureFixture[str]) -> None:
    """Each kind of site has its own image of it, and one may be in use and the other not."""
    other = settings.images_directory / "one-id"
    add(other, "c")
    said = run(settings, capsys, is_dry=True)
    assert f"would remove  ctl:5000/c:1 in {other}  1.0 MB" in said
    assert "kept  ctl:5000/c:1  1.0 MB  (in use by 1 pod)" in said
    found = json.loads(run(settings, capsys, is_dry=True, is_json=True))
    (kept,) = (one["directory"] for one in found["kept"] if one["names"] == ["ctl:5000/c:1"])
    (gone,) = (one["directory"] for one in found["removed"] if one["names"] == ["ctl:5000/c:1"])
    assert (kept, gone) == (str(settings.images_directory), str(other))


def test_what_could_not_be_removed_is_not_said_to_be_new(
    settings: config.Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory that is somebody else's nothing goes."""
    monkeypatch.setattr(cache.Cache, "condemn", lambda *_: False)
    said = run(settings, capsys)
    assert "kept  ctl:5000/a:1  1.0 MB  (in use again, or the file system refused to remove it)" in said
    assert said.endswith("0 of 5 images, 0.0 MB\n")


def test_where_there_are_no_images_nothing_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a directory is made."""
    settings = config.load(environment={"HPK_STATE": str(tmp_path / "none")})
    assert run(settings, capsys) == "0 of 0 images, 0.0 MB\n"
    assert not (tmp_path / "none").exists()
