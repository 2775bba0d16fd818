"""Access to Slurm for commands: through the launcher's gateway or a temporary one, and polls of the user's jobs."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors
from hpk.aio import backoff
from hpk.host import pack
from hpk.slurm import client, runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpk import config
    from hpk.slurm import model

START_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


@contextlib.contextmanager
def slurm(settings: config.Settings) -> Iterator[client.Slurm]:
    """Yield Slurm through ``settings.gateway``, or through a gateway that lives as long as the block.

    Raises:
        errors.Fatal: There is no Slurm on this host.
    """
    if settings.gateway is not None:
        _wait_for(settings.gateway, None)
        yield client.Slurm(runner.GatewayClient(settings.gateway))
        return
    if shutil.which("sbatch") is None:
        raise errors.Fatal("Cannot reach Slurm: there is no sbatch on this host; run hpk on a login node")
    with tempfile.TemporaryDirectory(prefix="hpk.", dir="/tmp") as directory:  # a socket's path must be short
        program, socket = Path(directory) / "host.pyz", Path(directory) / "gateway" / "socket"
        program.write_bytes(pack.archive())
        keep = ["--keep=HPK_*", "--keep=SBATCH_*", "--keep=KUBECONFIG", "--keep=*_proxy", "--keep=*_PROXY"]
        command = [sys.executable, "-IS", str(program), "gateway", *keep, str(socket)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:  # ends when its stdin is closed
            _wait_for(socket, process)
            yield client.Slurm(runner.GatewayClient(socket))


class JobPoll:
    """This user's jobs, asked of Slurm with growing pauses; its silence changes nothing."""

    def __init__(self, slurm: client.Slurm, pauses: backoff.BackoffPolicy) -> None:
        self.jobs: dict[str, model.Job] = {}
        self._slurm = slurm
        self._pauses = backoff.Backoff(pauses)
        self._loop = asyncio.get_running_loop()
        self._due_at = self._loop.time() + self._pauses.failed()

    async def poll(self) -> bool:
        """Ask Slurm if it is time; return whether it has answered."""
        if self._loop.time() < self._due_at:
            return False
        try:
            self.jobs = await self._slurm.jobs()
        except errors.SlurmUnavailable:
            return False
        finally:  # not before: Slurm may answer more slowly than the pauses last
            self._due_at = self._loop.time() + self._pauses.failed()
        return True


def _wait_for(socket: Path, process: subprocess.Popen[bytes] | None) -> None:
    """Wait until the gateway listens; the launcher starts it at the same time as this program."""
    deadline = time.monotonic() + START_SECONDS
    while not socket.exists():
        if time.monotonic() > deadline or (process is not None and process.poll() is not None):
            raise errors.SlurmUnavailable(f"Cannot reach Slurm: no gateway listens on {socket}")
        time.sleep(_PAUSE_SECONDS)
