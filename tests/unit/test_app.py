"""What the composition root does itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog.testing

from hpk import app, errors, kubeconfig

if TYPE_CHECKING:
    import pytest


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
    monkeypatch.setattr(app, "MERGE_SECONDS", 0.0)
    with structlog.testing.capture_logs() as logs:
        await app._merge(b"", instead="export KUBECONFIG=x")
        await given.wait()
    assert [line["event"] for line in logs] == ["locked", "full"]
