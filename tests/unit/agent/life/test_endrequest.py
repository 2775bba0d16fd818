"""An agent off the line learns in its pod's directory that the pod is to end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.life import endrequest
from tests import background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.virtual_time


class Bench:
    """The pod, and whether its agent is connected."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "end.json")
        self.is_connected = False
        self.asked = 0
        self.ended: list[tuple[str, float | None]] = []
        self.news = asyncio.Event()
        self.requests = endrequest.EndRequestWatcher(self.path, self, is_connected=self._connected)

    def _connected(self) -> bool:
        self.asked += 1
        self.news.set()
        return self.is_connected

    def end(self, reason: str, *, message: str = "", grace_seconds: float | None = None) -> None:
        assert message == ""
        self.ended.append((reason, grace_seconds))
        self.news.set()

    def ask(self, grace: float) -> None:
        """The kubelet leaves one."""
        jobdir.write_json(self.path, {"grace_seconds": grace, "reason": "Deleted", "message": ""})

    async def until(self, holds: Any) -> None:
        """Wait until it holds."""
        async with asyncio.timeout(30):
            while not holds():
                self.news.clear()
                await self.news.wait()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """A pod whose agent looks."""
    made = Bench(tmp_path)
    task = asyncio.create_task(made.requests.watch())
    yield made
    await background.end(task)


async def test_a_wish_is_found_while_the_kubelet_is_away(bench: Bench) -> None:
    """Within its grace, not the pod's own."""
    bench.ask(600)
    await bench.until(lambda: bench.ended)
    assert bench.ended[0] == ("Deleted", 600.0)


async def test_a_connected_agent_does_not_look(bench: Bench) -> None:
    """The shared file system has better things to do: the link brings it."""
    bench.is_connected = True
    bench.ask(600)
    await bench.until(lambda: bench.asked > 2)
    assert bench.ended == []


@pytest.mark.parametrize(("content", "grace"), [(None, None), (b"", None), (b'{"grace', None)])
async def test_a_signal_alone_ends_the_pod_within_its_own_grace(
    bench: Bench, content: bytes | None, grace: float | None
) -> None:
    """The kubelet signals where it cannot write; a torn file is none."""
    bench.is_connected = True
    if content is not None:
        jobdir.write_bytes(bench.path, content)
    bench.requests.signal()
    await bench.until(lambda: bench.ended)
    assert bench.ended == [("Deleted", grace)]
