"""Clients that send changed recordings, or noise, to a server that serves others."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from hpk.link import sessions
from tests.fakes import pods as fakes
from tests.fakes.kubelet import World
from tests.fakes.streams import Spdy, WebSocket

RECORDINGS = Path(__file__).parent / "recordings"
REMOTE = "/exec/a/p/c?command=cat&input=1&output=1&error=1"
FORWARD = "/portForward/a/p"
CASES = (
    ("exec.spdy", Spdy, REMOTE, "v4.channel.k8s.io"),
    ("tty.spdy", Spdy, f"{REMOTE}&tty=1", "v4.channel.k8s.io"),
    ("forward.spdy", Spdy, FORWARD, "portforward.k8s.io"),
    ("exec.websocket", WebSocket, REMOTE, "v5.channel.k8s.io"),
    ("forward.websocket", WebSocket, FORWARD, "SPDY/3.1+portforward.k8s.io"),
)


def changed(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, put in, and cut short."""
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made) + 1)
        match chance.randrange(4):
            case 0:
                made[at : at + 1] = bytes((chance.randrange(256),))
            case 1:
                del made[at : at + chance.randrange(20)]
            case 2:
                made[at:at] = made[at : at + chance.randrange(40)]
            case _:
                made[at:at] = chance.randbytes(chance.randrange(30))
    return bytes(made[: chance.randrange(len(made) + 1)] if chance.random() < 0.3 else made)


@pytest.mark.parametrize("seed", range(4))
async def test_nonsense_harms_nobody(tmp_path: Path, seed: int) -> None:
    """The server goes on, so does another's session, and nothing is left of those who sent it."""
    chance = random.Random(seed)  # noqa: S311 - the same in every run
    world = World(tmp_path)
    world.pods.put(fakes.pod(state=fakes.RUNNING))
    async with world.server:
        client = await Spdy.open(world)
        error, stdin, stdout, _ = await client.remote(REMOTE, "v4.channel.k8s.io", "stdin", "stdout", "stderr")
        good = await world.opener.opened.get()
        for name, kind, path, protocol in CASES:
            for _ in range(3):
                hostile = await kind.open(world)
                assert (await hostile.start(path, protocol)).status == 101
                hostile.writer.write(changed((RECORDINGS / name).read_bytes(), chance))
                await hostile.writer.drain()
                client.send(stdin, b"x")
                await good.say(sessions.Data(1, b"y"))
                await client.until(stdout, len(client.streams[stdout]) + 1)
                hostile.close()
        while not world.opener.opened.empty():
            await world.opener.opened.get_nowait().aborted.wait()
        await good.say(sessions.Ended(exit_code=0))
        await client.until_ended(error)
        assert good.sent == {0: b"x" * 15}
        assert client.streams[stdout] == b"y" * 15
        await world.close()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left
