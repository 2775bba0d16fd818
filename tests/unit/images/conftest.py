"""A fake registry, and a client that does not wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpk.images import registry
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own proxies have nothing to do with the test."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def server() -> AsyncIterator[fake.FakeRegistry]:
    """A registry on a loopback address."""
    async with fake.FakeRegistry() as running:
        yield running


@pytest.fixture
def pauses() -> list[float]:
    """How long the client would have waited, so far."""
    return []


@pytest.fixture
async def client(pauses: list[float]) -> AsyncIterator[registry.Registry]:
    """A client whose pauses are noted and not made."""

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with registry.Registry(sleep=sleep) as made:
        yield made
