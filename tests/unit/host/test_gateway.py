"""The gateway runs what it knows, for its own user, and hands bytes through unchanged."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.host import gateway, pack
from hpk.slurm import client, runner

if TYPE_CHECKING:
    from collections.abc import Iterator


class Running:
    """A gateway process with commands of the test's own on its PATH."""

    def __init__(self, root: Path) -> None:
        self.commands = root / "bin"
        self.commands.mkdir()
        self.socket = root / "gateway" / "socket"
        self.home = root
        self.program = root / "host.pyz"
        self.program.write_bytes(pack.archive())
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, name: str, script: str) -> None:
        """Put a command on the gateway's PATH."""
        path = self.commands / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def start(self, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start it, and wait until it accepts."""
        self._process = subprocess.Popen(
            [sys.executable, "-IS", str(self.program), "gateway", *options, str(self.socket)],
            stdin=subprocess.PIPE,
            env={"PATH": f"{self.commands}:/usr/bin:/bin", "HOME": str(self.home), **environment},
        )
        watch = socket.socket(socket.AF_UNIX)
        while watch.connect_ex(str(self.socket)):
            assert self._process.poll() is None, "the gateway ended"
        watch.close()
        return self._process

    def stop(self) -> None:
        """Close its standard input, and wait for the end that this means."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            assert self._process.wait(60) == 0
            self._process = None


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A gateway, not started yet, and gone afterwards."""
    made = Running(tmp_path)
    yield made
    made.stop()


async def test_bytes_go_through(running: Running) -> None:
    """Arguments, standard input and output are the same bytes at both ends; the exit code too."""
    running.command("sbatch", 'printf "%s\\0" "$@"; cat; printf "\\377" >&2; pwd >&2; exit 7')
    running.start()
    odd = b"\xff'\"\n$(x) \xc3\xbc".decode("utf-8", "surrogateescape")
    result = await runner.GatewayClient(running.socket).run(
        "sbatch", odd, "", stdin=bytes(range(256)) * 5000, directory=Path("/usr")
    )
    assert result.stdout == b"\xff'\"\n$(x) \xc3\xbc\0\0" + bytes(range(256)) * 5000
    assert (result.code, result.stderr, result.end) == (7, b"\xff/usr\n", "exited")


async def test_the_environment_is_the_gateways_own(running: Running) -> None:
    """Nothing of the surrounding job, no option in disguise and no secret reaches the new job."""
    running.command("sbatch", "env -0")
    running.start(
        "--keep", "HPK_*",
        SLURM_JOB_ID="1", SBATCH_PARTITION="x", SLURM_MEM_PER_NODE="5", TOKEN="t", SLURM_CONF="/c",
        LANG="C.UTF-8", HPK_FLAGS="-p x", **{"BASH_FUNC_module%%": "() {  :\n}"},
    )  # fmt: skip
    result = await runner.GatewayClient(running.socket).run("sbatch")
    found = dict(line.split("=", 1) for line in result.text.split("\0") if line)
    expected = {
        "PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "SLURM_TIME_FORMAT", "HPK_FLAGS", "BASH_FUNC_module%%",
    }  # fmt: skip
    assert set(found) - {"PWD", "SHLVL", "_", "OLDPWD"} == expected  # bash adds the others itself
    assert found["HOME"] == str(running.home)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("rm", ["-rf", "/"]),
        ("../../bin/sh", []),
        ("scontrol", ["update", "job", "1"]),
        ("scontrol", ["-o", "requeuehold", "1"]),
        ("scontrol", []),
        ("sacctmgr", ["-i", "delete", "user", "x"]),
        ("sdiag", ["--reset"]),
        ("", []),
    ],
)
async def test_other_commands_are_refused(running: Running, command: str, arguments: list[str]) -> None:
    """Only Slurm's commands, and of those that change the site only what reads."""
    running.start()
    with pytest.raises(errors.SlurmUnavailable, match=r"the gateway (does not run|runs) "):
        await runner.GatewayClient(running.socket).run(command, *arguments)


async def test_read_only_verbs_are_run(running: Running) -> None:
    """Showing is fine."""
    running.command("scontrol", 'echo "$@"')
    running.start()
    result = await runner.GatewayClient(running.socket).run("scontrol", "-o", "show", "job", "1")
    assert result.text == "-o show job 1\n"


async def test_a_missing_command_is_named(running: Running) -> None:
    """A host without Slurm says so."""
    running.start(PATH=str(running.commands))
    with pytest.raises(errors.SlurmUnavailable, match="no 'sacct' on PATH"):
        await runner.GatewayClient(running.socket).run("sacct")


async def test_many_at_once(running: Running) -> None:
    """A command that takes long does not hold up the others."""
    fifo = running.home / "fifo"
    os.mkfifo(fifo)
    running.command("squeue", f"cat {fifo}")
    running.command("sinfo", 'echo "$1"')
    running.start()
    host = runner.GatewayClient(running.socket)
    slow = asyncio.create_task(host.run("squeue"))
    quick = await asyncio.gather(*(host.run("sinfo", str(number)) for number in range(40)))
    assert [result.text for result in quick] == [f"{number}\n" for number in range(40)]
    assert not slow.done()
    await asyncio.to_thread(fifo.write_text, "at last")
    assert (await slow).text == "at last"


async def test_a_timeout_kills_the_whole_group(running: Running) -> None:
    """What a command started dies with it when its time is up."""
    pid = running.home / "pid"
    os.mkfifo(pid)
    running.command("squeue", f"sleep 1000 & echo $! >{pid}; echo partly; wait")
    running.start()
    asking = asyncio.create_task(runner.GatewayClient(running.socket).run("squeue", timeout_seconds=0.3))
    child = int(await asyncio.to_thread(pid.read_text))
    result = await asking
    assert (result.end, result.stdout) == ("timeout", b"partly\n")
    await ended(child)


async def test_a_client_that_leaves_ends_its_command(running: Running) -> None:
    """Cancelling the request ends the command on the host."""
    pid = running.home / "pid"
    os.mkfifo(pid)
    running.command("squeue", f"echo $$ >{pid}; sleep 1000")
    running.start()
    asking = asyncio.create_task(runner.GatewayClient(running.socket).run("squeue"))
    child = int(await asyncio.to_thread(pid.read_text))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await ended(child)


async def ended(pid: int) -> None:
    """Wait until the process is gone, or only waits to be reaped by init."""
    descriptor = None
    try:
        descriptor = os.pidfd_open(pid)
        waiting = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, waiting.set)
        await asyncio.wait_for(waiting.wait(), 30)
    except ProcessLookupError:
        return
    finally:
        if descriptor is not None:
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)


def test_the_socket_is_for_one_user(running: Running) -> None:
    """The directory is 0700 and the socket 0600; a directory that others may enter is refused."""
    running.start()
    assert stat.S_IMODE(running.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(running.socket.stat().st_mode) == 0o600
    running.stop()
    running.socket.parent.chmod(0o755)
    with pytest.raises(SystemExit, match="0700"):
        gateway.GatewayServer(str(running.socket)).listen()


def test_it_outlives_signals_and_ends_with_its_parent(running: Running) -> None:
    """Slurm signals every process of a job at once; the gateway serves on until its standard input ends."""
    process = running.start()
    for number in (15, 2, 1):
        process.send_signal(number)
    assert ask(running.socket, {"version": 1, "command": "site"})["end"] == "exited"
    running.stop()
    assert not running.socket.exists()


def test_a_leftover_socket_is_replaced(running: Running) -> None:
    """A gateway that was killed leaves its socket behind; the next one takes its place."""
    first = running.start()
    first.kill()
    first.wait()
    assert first.stdin is not None
    first.stdin.close()
    running.start()
    assert ask(running.socket, {"version": 1, "command": "site"})["end"] == "exited"


@pytest.mark.parametrize("message", [b"\0\0\0\2{}", b"\0\0\0\6nojson", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b""])
def test_nonsense_ends_nothing(running: Running, message: bytes) -> None:
    """A request that is not understood is answered so, and the next one is served."""
    running.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(running.socket))
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert not message or b'"refused"' in answer
    assert ask(running.socket, {"version": 1, "command": "site"})["end"] == "exited"


def test_another_version_is_refused(running: Running) -> None:
    """Client and gateway of different releases say so instead of misunderstanding each other."""
    running.start()
    assert ask(running.socket, {"version": 99, "command": "site"})["end"] == "refused"


def ask(path: Path, request: dict[str, Any]) -> dict[str, Any]:
    """The header of the answer, without the client's help."""
    head = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(struct.pack(">I", len(head)) + head)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">I", stream.read(4))
        answer: dict[str, Any] = json.loads(stream.read(size))
        return answer


async def test_the_site_is_described(running: Running, tmp_path: Path) -> None:
    """The host's facts: Apptainer with version, setuid and networks, Slurm's version, names and addresses."""
    settings = tmp_path / "etc"
    (settings / "network").mkdir(parents=True)
    (settings / "network" / "40_fakeroot.conflist").write_text('{"name": "fakeroot", "plugins": [{"type": "bridge"}]}')
    (settings / "network" / "50_broken.conflist").write_text("{")
    running.command(
        "apptainer",
        f'[ "$1" = --version ] && echo apptainer version 1.4.5; [ "$1" = buildcfg ] &&'
        f' printf "APPTAINER_CONFDIR={settings}\\nLIBEXECDIR={tmp_path}\\n"; true',
    )
    running.command("sinfo", "echo slurm-wlm 24.11.5")
    running.start()
    slurm = client.Slurm(runner.GatewayClient(running.socket))
    site = await slurm.site()
    assert site["apptainer"] == {
        "path": str(running.commands / "apptainer"),
        "version": "1.4.5",
        "setuid": False,
        "networks": {"fakeroot": ["bridge"]},
    }
    assert site["slurm_version"] == "24.11.5"
    assert (site["hostname"], site["uid"]) == (socket.gethostname(), os.getuid())
    assert all(len(pair) == 2 for pair in site["addresses"])
    assert (await slurm.site(apptainer="nosuch"))["apptainer"] is None


async def test_no_gateway_is_an_outage(tmp_path: Path) -> None:
    """A gateway that is away is Slurm that does not answer; nothing can have been submitted."""
    with pytest.raises(errors.SlurmUnavailable, match="through the gateway") as caught:
        await runner.GatewayClient(tmp_path / "none").run("squeue")
    assert not caught.value.may_have_succeeded


async def test_a_gateway_that_dies_leaves_doubt(running: Running) -> None:
    """A connection that breaks in the middle may have submitted."""
    running.command("sbatch", "kill -9 $PPID")
    process = running.start()
    with pytest.raises(errors.SlurmUnavailable) as caught:
        await runner.GatewayClient(running.socket).run("sbatch")
    assert caught.value.may_have_succeeded
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    running._process = None
