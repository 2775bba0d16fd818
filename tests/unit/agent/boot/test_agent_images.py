"""Images of a pod's containers: one mount each, and its end is known however late it is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from hpk.agent.boot import images

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> images.Images:
    """Images whose squashfuse is a shell: it fails for a file named bad."""
    program = tmp_path / "squashfuse"
    program.write_text('#!/bin/sh\necho "$3" >>"${0%/*}/asked"\n[ "${3##*/}" != bad ]\n')
    program.chmod(0o755)
    monkeypatch.setattr(images, "SQUASHFUSE", str(program))
    return images.Images(str(tmp_path / "images"), source=str(tmp_path))


def test_an_image_is_mounted_once(mounts: images.Images, tmp_path: Path) -> None:
    """Containers of one image share it."""
    for _ in range(2):
        mounts.start("good", offset=0)
    assert mounts.ready("good", offset=0) == mounts.ready("good", offset=0)
    assert (tmp_path / "asked").read_text() == f"{tmp_path}/good\n"


def test_an_image_that_a_later_container_needs_is_known_after_its_process_was_collected(mounts: images.Images) -> None:
    """The event loop's reaper takes every child; an init container is followed by one of another image."""
    for name in ("good", "bad", "other"):
        mounts.start(name, offset=0)
    mounts.ready("good", offset=0)
    mounts.settle()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)  # as the reaper would
    assert mounts.ready("other", offset=0) != mounts.ready("good", offset=0)
    for _ in range(2):
        with pytest.raises(OSError, match="Cannot mount image bad: squashfuse ended with 1"):
            mounts.ready("bad", offset=0)


def test_only_what_was_mounted_is_unmounted(mounts: images.Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that failed before it began leaves nothing, and says nothing that is not so."""
    gone: list[str] = []
    monkeypatch.setattr(images, "unmount_quietly", gone.append)
    for name in ("good", "bad"):
        mounts.start(name, offset=0)
    mounts.settle()
    mounts.close()
    assert gone == [mounts.ready("good", offset=0)]


def test_nothing_is_mounted_by_a_program_that_is_not_there(
    mounts: images.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is told where it happens; ending the pod meets no other."""
    monkeypatch.setattr(images, "SQUASHFUSE", "/nowhere")
    with pytest.raises(FileNotFoundError):
        mounts.start("good", offset=0)
    mounts.settle()
    mounts.close()


def test_an_image_is_mounted_after_its_program_could_not_be_started(
    mounts: images.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod may have used all processes for a moment; what the first attempt left is no obstacle."""
    with monkeypatch.context() as patch:
        patch.setattr(images, "SQUASHFUSE", "/nowhere")
        with pytest.raises(FileNotFoundError):
            mounts.start("good", offset=0)
    mounts.start("good", offset=0)
    assert mounts.ready("good", offset=0)
