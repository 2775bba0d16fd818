"""A pod that ends at once is told of by a datagram and its file; nothing that anybody sends does more than a look."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.link import doorbell

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TIMEOUT = 30.0
SECRET = b"secret"
KEY = doorbell.key_of(SECRET, "pod-1")


class Kubelet:
    """The other end: which pods it knows, and which reports it has read."""

    def __init__(self, directory: Path) -> None:
        self.endpoint = directory / "endpoint.json"
        self.known = {"pod-1"}
        self.read: list[str] = []
        self.news = asyncio.Event()
        self.sequence = 7
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.bell = doorbell.Doorbell(
            host="127.0.0.1",
            is_known=self.known.__contains__,
            key=lambda uid: doorbell.key_of(SECRET, uid),
            read=self._read,
        )

    async def listen(self, port: int = 0) -> None:
        """Listen, and say where."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", port))
            port = free.getsockname()[1]
        await self.bell.listen(port)
        jobdir.write_json(str(self.endpoint), {"host": "127.0.0.1", "port": port})

    async def _read(self, uid: str) -> int:
        self.read.append(uid)
        self.news.set()
        await self.goes_on.wait()
        return self.sequence


@pytest.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """One that listens."""
    made = Kubelet(tmp_path)
    await made.listen()
    yield made
    made.bell.close()
    await asyncio.sleep(0)  # the loop closes the socket in its next turn


@pytest.fixture
async def ringer(kubelet: Kubelet) -> AsyncIterator[doorbell.Ringer]:
    """A known pod's."""
    made = doorbell.Ringer("pod-1", key=KEY.hex(), endpoint_file=str(kubelet.endpoint))
    yield made
    made.close()


async def test_a_ring_is_answered_when_the_report_was_read(kubelet: Kubelet, ringer: doorbell.Ringer) -> None:
    """What was read is what counts, not what was sent."""
    ringer.publish(7, b"")
    async with asyncio.timeout(TIMEOUT):
        await ringer.acknowledged(7)
    assert set(kubelet.read) == {"pod-1"}


@pytest.mark.virtual_time
async def test_an_older_report_is_no_answer(kubelet: Kubelet, ringer: doorbell.Ringer) -> None:
    """A shared file system may show the last one for a moment: the agent rings again."""
    kubelet.sequence = 6
    ringer.publish(7, b"")
    ringing = asyncio.create_task(ringer.acknowledged(7))
    while len(kubelet.read) < 3:
        kubelet.news.clear()
        await kubelet.news.wait()
    assert not ringing.done()
    kubelet.sequence = 7
    async with asyncio.timeout(TIMEOUT):
        await ringing


async def test_rings_during_a_read_are_one_more_read(kubelet: Kubelet) -> None:
    """However many come."""
    kubelet.goes_on.clear()
    for sequence in range(50):
        ring = doorbell._sealed(b"hpk-report 2 pod-1 %d " % sequence + b"0" * 32, KEY)
        kubelet.bell.datagram_received(ring, ("127.0.0.1", 9))
        await asyncio.sleep(0)
    kubelet.goes_on.set()
    await kubelet.bell._reading["pod-1"]
    assert len(kubelet.read) == 2


@pytest.mark.parametrize(
    "data",
    [
        doorbell._sealed(b"hpk-report 2 pod-2 1 " + b"0" * 32, doorbell.key_of(SECRET, "pod-2")),
        doorbell._sealed(b"hpk-report 2 pod-1 1 " + b"0" * 32, doorbell.key_of(SECRET, "pod-2")),
        doorbell._sealed(b"hpk-report 2 ../../pod-1 1 " + b"0" * 32, KEY),
        doorbell._sealed(b"hpk-report 1 pod-1 1 " + b"0" * 32, KEY),
        b"hpk-report 2 pod-1 1 " + b"0" * 32,
        b"hpk-report 2 pod-1 1 " + b"0" * 32 + b" " + b"0" * 32,
        b"hpk-report 2 pod-1 1",
        b"",
        b"\xff" * 2000,
    ],
)
async def test_nothing_else_is_read_or_answered(kubelet: Kubelet, ringer: doorbell.Ringer, data: bytes) -> None:
    """Pods that are unknown, another's key or none, other versions, nonsense; what comes after is heard."""
    endpoint: Any = jobdir.read_json(str(kubelet.endpoint))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setblocking(False)
        stranger.sendto(data, ("127.0.0.1", endpoint["port"]))
        ringer.publish(7, b"")
        async with asyncio.timeout(TIMEOUT):
            await ringer.acknowledged(7)
        with pytest.raises(BlockingIOError):
            stranger.recv(100)
    assert set(kubelet.read) == {"pod-1"}


async def test_a_forged_answer_is_not_believed(kubelet: Kubelet, ringer: doorbell.Ringer) -> None:
    """It must hold what only the kubelet was told."""
    kubelet.known.clear()
    ringer.publish(7, b"")
    assert ringer._socket is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        port = ringer._socket.getsockname()[1]
        stranger.sendto(doorbell._sealed(b"hpk-seen 2 " + b"0" * 32 + b" 7", KEY), ("127.0.0.1", port))
        stranger.sendto(b"hpk-seen 2 " + ringer._nonce + b" 7 " + b"0" * 32, ("127.0.0.1", port))
        stranger.sendto(b"hpk-seen", ("127.0.0.1", port))
    await asyncio.sleep(0)
    ringer._hear()
    assert ringer._seen == 0


async def test_a_kubelet_that_is_away_harms_nothing(tmp_path: Path) -> None:
    """There is no file, or nonsense in it, or nobody listens."""
    for text in (None, "", '{"host": 1}', '{"host": "127.0.0.1", "port": 9}'):
        file = tmp_path / "endpoint.json"
        if text is not None:
            file.write_text(text)
        ringer = doorbell.Ringer("pod-1", key=KEY.hex(), endpoint_file=str(file))
        ringer.publish(1, b"")
        ringer.close()
        ringer.close()
