"""The tunnel's end on the login host: by way of a gateway, with srun and ssh that start their command right here."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.host import dial, pack, protocol, tunnel
from hpk.slurm import client, runner
from tests import virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SRUN = """while [ "$1" != sh ]; do shift; done; echo "words of the site's own"; exec "$@" """
SSH = """exec sh -c "${@: -1}" """
FAILS = "echo 'first'; echo '{0}: error: not today' >&2; exit 1"


class Stage:
    """A state directory, a gateway, and an API server that says its name."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state of hpk"
        self.servers: list[asyncio.Server] = []
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None
        self.slurm = client.Slurm(runner.GatewayClient(root / "gateway" / "socket"))
        (root / "bin").mkdir()
        (self.state / "state").mkdir(parents=True)
        self.command("srun", SRUN)
        self.command("ssh", FAILS.format("ssh"))

    def command(self, name: str, script: str) -> None:
        """Put a command on the gateway's PATH."""
        path = self._root / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    async def control_plane(self, name: bytes, *, job_id: str) -> None:
        """Have a control plane, and have written down where it is."""

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(name)
            writer.close()

        self.servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
        self.write(self.servers[-1].sockets[0].getsockname()[1], job_id=job_id)

    def write(self, port: int, *, job_id: str) -> None:
        """As the control plane does."""
        (self.state / "state/owner.json").write_text(json.dumps({"host": "c1", "job_id": job_id}))
        (self.state / "kubeconfig").write_text(f"- cluster:\n    server: https://10.0.0.1:{port}\n")

    def start(self, python: str = sys.executable) -> None:
        """Start the gateway, and wait until it accepts; the relay will run with the same Python."""
        self.command("python3", f'exec "{python}" "$@"')
        program = self._root / "host.pyz"
        program.write_bytes(pack.archive())
        command = [python, "-IS", str(program), "gateway", str(self._root / "gateway" / "socket")]
        environment = {"PATH": f"{self._root}/bin:/usr/bin:/bin", "HOME": str(self._root)}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
        waiting.block_until(lambda: self._has_ended() or (self._root / "gateway" / "socket").exists())
        assert not self._has_ended()

    def _has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """Close the gateway's standard input."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)
            self._process = None

    async def tunnel(self, *options: str) -> dict[str, Any]:
        """What the tunnel says of itself."""
        return await self.slurm.tunnel(f"--state={self.state}", *options)

    @property
    def record(self) -> Path:
        """Where it says that."""
        return Path(protocol.tunnel_record(str(self.state)))


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage with a control plane, and nothing of it afterwards."""
    made = Stage(tmp_path)
    made.start()
    await made.control_plane(b"one", job_id="7")
    yield made
    made.stop()
    if record := tunnel.known(str(made.record)):
        os.kill(record["pid"], signal.SIGTERM)
    await gone(made.record)
    for server in made.servers:
        server.close()


async def gone(path: Path) -> None:
    """Wait until there is no such file."""
    await waiting.until(lambda: not path.exists())


async def heard(record: dict[str, Any]) -> bytes:
    """What the other end of the tunnel says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", record["port"])
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_one_tunnel_serves_all_commands(stage: Stage) -> None:
    """The first that asks makes it, in the background; whoever asks later shares it, and it outlives the gateway."""
    first = await stage.tunnel()
    assert (first["way"], first["job_id"], first["host"]) == ("srun", "7", "c1")
    assert await heard(first) == b"one"
    (program,) = (stage.state / "lib").iterdir()  # where the job's host sees it
    assert program.read_bytes() == pack.archive()
    assert await stage.tunnel() == first
    stage.stop()
    assert await heard(first) == b"one"
    assert stage.record.stat().st_mode & 0o777 == 0o600


async def test_a_held_tunnel_ends_with_its_gateway(stage: Stage) -> None:
    """And takes the place of one in the background."""
    first = await stage.tunnel()
    held = await stage.tunnel("--hold")
    assert held["pid"] != first["pid"]
    assert await stage.tunnel() == held
    with pytest.raises(errors.ApiUnavailable, match="runs on this host already"):
        await stage.tunnel("--hold")
    stage.stop()
    await gone(stage.record)


async def test_a_tunnel_that_was_killed_is_known_to_its_gateway(stage: Stage) -> None:
    """It cannot remove its record itself; another is made in its place."""
    assert not await stage.slurm.has_tunnel_ended()
    held = await stage.tunnel("--hold")
    assert not await stage.slurm.has_tunnel_ended()
    os.kill(held["pid"], signal.SIGKILL)
    async with asyncio.timeout(waiting.LIMIT_SECONDS):
        while not await stage.slurm.has_tunnel_ended():
            pass  # the answer itself takes its time
    assert stage.record.exists()
    assert await heard(await stage.tunnel("--hold")) == b"one"
    assert not await stage.slurm.has_tunnel_ended()


async def test_ssh_where_srun_does_not_work(stage: Stage) -> None:
    """Whatever works; and nothing but what the settings name."""
    stage.command("srun", FAILS.format("srun"))
    stage.command("ssh", SSH)
    with pytest.raises(errors.ApiUnavailable, match=r"srun failed: srun: error: not today$"):
        await stage.tunnel("--ways=srun")
    record = await stage.tunnel()
    assert record["way"] == "ssh"
    assert await heard(record) == b"one"


async def test_every_failure_is_told(stage: Stage) -> None:
    """In the words of srun and of ssh."""
    stage.command("srun", FAILS.format("srun"))
    with pytest.raises(errors.ApiUnavailable, match="srun: error: not today; ssh failed: ssh: error: not today"):
        await stage.tunnel()
    assert not stage.record.exists()


async def test_an_api_server_that_is_away_is_told(stage: Stage) -> None:
    """The relay looks before anybody relies on it."""
    stage.write(1, job_id="7")
    with pytest.raises(errors.ApiUnavailable, match="does not answer on its own host: Connection refused"):
        await stage.tunnel("--ways=srun")


async def test_no_control_plane_is_told(stage: Stage) -> None:
    """With what starts one."""
    (stage.state / "kubeconfig").unlink()
    with pytest.raises(errors.ApiUnavailable, match="no control plane runs; 'hpk up' starts it"):
        await stage.tunnel()


async def test_a_home_without_room_for_the_tunnels_programs_is_told(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fault of the way, so that `hpk status` still says what Slurm knows; nothing half is left."""
    (stage.state / "lib").touch()  # no room, as far as the tunnel can see
    with pytest.raises(errors.ApiUnavailable, match=r"cannot put the tunnel's programs into .*/lib: File exists"):
        await stage.tunnel()
    (stage.state / "lib").unlink()

    def full(_: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    (stage.state / "run").touch()
    with pytest.raises(errors.ApiUnavailable, match=r"cannot put the tunnel's record into .*/run: (File|Not)"):
        await stage.tunnel()
    for left in (stage.state / "lib").iterdir():
        left.unlink()

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(dial.Problem, match="No space left on device; free some space there"):
        dial.placed(b"program", str(stage.state))
    assert list((stage.state / "lib").iterdir()) == []


def test_programs_that_a_crash_has_cut_short_are_brought_anew(tmp_path: Path) -> None:
    """An empty file is a program to Python, which ends without a word."""
    path = Path(dial.placed(b"program", str(tmp_path)))
    was = path.stat().st_ino
    assert (dial.placed(b"program", str(tmp_path)), path.stat().st_ino) == (str(path), was)
    path.write_bytes(b"")
    dial.placed(b"program", str(tmp_path))
    assert path.read_bytes() == b"program"
    os.utime(path, (0, 0))
    dial.placed(b"program", str(tmp_path))
    assert path.stat().st_mtime > 0  # the launcher spares what a tunnel has used


def test_two_commands_may_bring_the_tunnels_programs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two hosts, whose locks are their own: neither takes away what the other has brought so far."""
    real = os.rename
    found = list[str]()

    def rename(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", real)
        monkeypatch.setattr(socket, "gethostname", lambda: "other")
        found.append(dial.placed(b"program", str(tmp_path)))
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    found.append(dial.placed(b"program", str(tmp_path)))
    assert found == [found[0]] * 2
    assert Path(found[0]).read_bytes() == b"program"
    assert [str(path) for path in (tmp_path / "lib").iterdir()] == found[:1]


async def test_a_port_that_is_taken_is_told(stage: Stage) -> None:
    """Only if it was asked for; else another one is taken, as this stage's API server shows."""
    taken = stage.servers[0].sockets[0].getsockname()[1]
    with pytest.raises(errors.ApiUnavailable, match=f"port {taken} is taken"):
        await stage.tunnel(f"--port={taken}")


async def test_a_held_tunnel_follows_the_control_plane(stage: Stage) -> None:
    """It is made anew by the next connection after it was lost."""
    held = await stage.tunnel("--hold")
    children = Path(f"/proc/{held['pid']}/task/{held['pid']}/children").read_text().split()  # noqa: ASYNC240
    await stage.control_plane(b"two", job_id="8")
    (program,) = (stage.state / "lib").iterdir()
    program.unlink()  # another version's launcher may have taken it for unused
    os.kill(int(children[0]), signal.SIGKILL)
    while (said := await heard(held)) != b"two":
        assert said == b""  # the connection was there before the loss was noticed
    assert await heard(held) == b"two"


async def test_a_tunnel_in_the_background_ends_with_its_line(stage: Stage) -> None:
    """The next command makes another."""
    first = await stage.tunnel()
    (child,) = Path(f"/proc/{first['pid']}/task/{first['pid']}/children").read_text().split()  # noqa: ASYNC240
    os.kill(int(child), signal.SIGKILL)
    await gone(stage.record)
    assert (await stage.tunnel())["pid"] != first["pid"]


def test_two_who_want_a_tunnel_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, also where the home has no locks; whoever holds on to it is not waited for without end."""
    path = str(tmp_path / "tunnel.json")
    first = tunnel.locked(path)
    monkeypatch.setattr(tunnel, "time", virtual.Time())
    with tunnel.locked(path) as second:
        assert not second.getsockname()
    first.close()
    with tunnel.locked(path) as third:
        assert third.getsockname()


@pytest.mark.parametrize(
    ("number", "words"),
    [(errno.EADDRINUSE, "port 80 is taken on this host"), (errno.EACCES, "port 80 cannot be used: Permission denied")],
)
async def test_a_port_that_is_not_to_be_had_is_refused_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """Somebody else's, or one that an ordinary user may not have."""

    async def refuse(*_: Any) -> None:
        raise OSError(number, "error while attempting to bind")

    async def end() -> None:
        pass

    monkeypatch.setattr(asyncio, "start_server", refuse)
    made: Any = SimpleNamespace(accept=None, end=end)
    with pytest.raises(dial.Problem, match=words):
        await tunnel._listen(made, 80)
