"""Images are mounted while other things happen, and are there for whichever container comes last."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from hpk.agent import images, processes

if TYPE_CHECKING:
    import pathlib


async def test_an_image_is_ready_after_the_reaper_has_collected_every_child(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts after an init container may be the first of its image: the loop runs long since."""
    monkeypatch.setattr(images, "SQUASHFUSE", "/bin/true")
    mounted = images.Images(str(tmp_path / "mounted"), source="/nowhere")
    mounted.start("one", offset=0)
    monkeypatch.setattr(images, "SQUASHFUSE", "/bin/false")
    mounted.start("two", offset=0)
    mounted.settle()
    processes.Reaper(asyncio.get_running_loop()).reap()
    assert mounted.ready("one", offset=0) == str(tmp_path / "mounted" / "0")
    with pytest.raises(OSError, match="Cannot mount image two: squashfuse ended with 1"):
        mounted.ready("two", offset=0)
