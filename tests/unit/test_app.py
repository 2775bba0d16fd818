"""What the composition root does itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

from hpk import app, config, errors, kubeconfig
from hpk.aio import memory
from hpk.controlplane import plane

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.mark.virtual_time
async def test_the_way_in_is_given_as_soon_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that is full, or a lock that somebody holds, is no reason for a kubeconfig that leads nowhere for good."""
    troubles: list[Exception] = [errors.Conflict("locked"), errors.Conflict("locked"), OSError("full")]
    given = asyncio.Event()
    loop = asyncio.get_running_loop()

    def merge(_: bytes) -> None:
        if troubles:
            raise troubles.pop(0)
        loop.call_soon_threadsafe(given.set)

    monkeypatch.setattr(kubeconfig, "merge", merge)
    with structlog.testing.capture_logs() as logs:
        await app._merge(b"", instead="export KUBECONFIG=x")
        await given.wait()
    assert [line["event"] for line in logs] == ["locked", "full"]


async def test_the_image_is_the_one_that_was_there_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is installed while the control plane waits, for etcd or for Slurm, is not the one that it runs from."""
    image = tmp_path / "hpk.sif"
    image.touch()
    os.utime(image, ns=(0, 1))
    noted: list[int | None] = []

    @contextlib.asynccontextmanager
    async def prepared(_: config.Settings) -> AsyncIterator[Any]:
        os.utime(image, ns=(0, 2))
        serving = asyncio.Event()
        serving.set()
        yield SimpleNamespace(serving=serving, run=asyncio.Event().wait)

    async def run_kubelet(*_: object, image_changed_at: int | None) -> None:
        noted.append(image_changed_at)
        os.kill(os.getpid(), signal.SIGTERM)

    for name in ("few_arenas", "small_tls_buffers"):  # for this whole process, they would be
        monkeypatch.setattr(memory, name, lambda: None)
    monkeypatch.setattr(plane, "prepared", prepared)
    monkeypatch.setattr(app, "_run_kubelet", run_kubelet)
    await app.serve(config.Settings(state=tmp_path))
    assert noted == [1]
