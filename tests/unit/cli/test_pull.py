"""``hpk pull`` says what there is now, and uses the credentials that other tools have written; ``hpk kubectl``."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpk import config, errors
from hpk.cli import kubectl, main, pull, slurmaccess
from hpk.images import image, store
from hpk.slurm import client
from tests.fakes import slurm as fake

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHER = Path(__file__).parents[3] / "scripts/hpk"


def made(name: str, *, was_pulled: bool = True) -> image.Image:
    """An image as the store gives it."""
    return image.Image(
        reference=name,
        image_id="ctl:5000/busybox@sha256:12ab",
        file=Path("/images/12ab.sqfs"),
        offset=0,
        size_bytes=1_500_000,
        config=image.ImageConfig(),
        was_pulled=was_pulled,
        seconds=1.25,
    )


def see(monkeypatch: pytest.MonkeyPatch, site: dict[str, Any]) -> None:
    """Have the gateway say this of the host."""

    @contextlib.contextmanager
    def slurm(_: config.Settings) -> Iterator[client.Slurm]:
        yield client.Slurm(fake.Conversation(("site", json.dumps(site))))

    monkeypatch.setattr(slurmaccess, "slurm", slurm)


@pytest.mark.parametrize(("site", "place"), [({"subuid": [1, 2], "subgid": [1, 2]}, "images"), ({}, "images/one-id")])
async def test_images_go_where_pods_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: dict[str, Any], place: str
) -> None:
    """Pods of users without subordinate ids have images of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    see(monkeypatch, site)
    seen: list[tuple[Path, bool]] = []

    async def ensure(self: store.ImageStore, name: str, *, is_pinned: bool, **_: Any) -> image.Image:
        assert is_pinned  # compute nodes may reach no registry: what a person brought is not collected
        seen.append((self._directory, self._has_one_owner))
        return made(name)

    monkeypatch.setattr(store.ImageStore, "ensure", ensure)
    assert await pull.run(config.Settings(state=tmp_path), names=["busybox"], auth_file=None) == 0
    assert seen == [(tmp_path / place, not site)]


def test_a_line_has_digest_and_size() -> None:
    """One line an image, for people and for scripts."""
    assert pull.line(made("ctl:5000/busybox:1")) == "ctl:5000/busybox:1  sha256:12ab  1.5 MB  (pulled in 1.2 s)"
    assert pull.line(made("busybox", was_pulled=False)).endswith("(up to date)")


async def test_one_that_fails_keeps_none_from_coming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are pulled, the fault is said, and the exit code is 1."""
    monkeypatch.setenv("HOME", str(tmp_path))

    async def ensure(_: store.ImageStore, name: str, **options: Any) -> image.Image:
        assert options["policy"] == "Always"
        if name == "nosuch":
            raise errors.ImageRefused("not found")
        return made(name)

    monkeypatch.setattr(store.ImageStore, "ensure", ensure)
    see(monkeypatch, {})
    settings = config.Settings(state=tmp_path)
    assert await pull.run(settings, names=["nosuch", "busybox"], auth_file=None) == 1
    told = capsys.readouterr()
    assert told.out.startswith("busybox  sha256:12ab")
    assert told.err == "hpk: not found\n"


def test_credentials_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker's file, then Apptainer's; a named one wins, and must be there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert pull.credentials(None) is None
    for number, name in enumerate((".apptainer/docker-config.json", ".docker/config.json", "named.json")):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"auths": {}, "number": number}))
        found = pull.credentials(file if name == "named.json" else None)
        assert found is not None
        assert found["number"] == number
    with pytest.raises(errors.Fatal, match="there is no such file"):
        pull.credentials(tmp_path / "nowhere")
    (tmp_path / "named.json").write_text("{")
    with pytest.raises(errors.Fatal, match="Cannot read credentials"):
        pull.credentials(tmp_path / "named.json")


def test_kubectl_gets_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and the first ``--`` too."""
    became: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *words: became.extend(words[:2]))
    monkeypatch.setattr(kubectl, "is_for_us", lambda _: False)
    words = ["-n", "x", "exec", "-it", "p", "--", "ls", "--help"]
    monkeypatch.setattr(sys, "argv", ["hpk", "kubectl", *words])
    assert main.main() == 0
    assert became == [kubectl.PROGRAM, ["kubectl", *words]]


def test_the_launcher_shows_the_files_that_are_named(tmp_path: Path) -> None:
    """A manifest outside the home can be read in the container; the system's own directories stay the image's."""
    named = runpy.run_path(str(LAUNCHER))["named"]
    file = tmp_path / "pod.yaml"
    file.touch()
    assert named(["apply", "-f", str(file)]) == [str(tmp_path)]
    assert named(["apply", f"--filename={file}", str(tmp_path)]) == [str(tmp_path)] * 2
    assert named(["apply", "-f", "/nowhere/x", "/etc/passwd", "relative", "/", "/opt"]) == []


def test_the_launcher_shows_where_a_file_is_to_be_written(tmp_path: Path) -> None:
    """`kubectl cp` makes files that are not there yet; what follows -- is a pod's."""
    named = runpy.run_path(str(LAUNCHER))["named"]
    assert named(["cp", "pod:/x", f"{tmp_path}/new"]) == [str(tmp_path)]
    assert named(["exec", "pod", "--", "cat", str(tmp_path)]) == []
