"""``hpk up``: submit hpk.sbatch and show progress until the node is Ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors, jobdir
from hpk.aio import backoff
from hpk.cli import cluster, data_files, instance, slurmaccess
from hpk.controlplane import ownership, placement, version

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpk import config
    from hpk.slurm import client, model

LOOK_SECONDS = 0.25
"""Pause between looks at the state directory, which are cheap."""
PAUSES = backoff.BackoffPolicy(first_seconds=1.0, factor=1.5, cap_seconds=15.0)
"""Pauses between questions to Slurm."""
UNREACHABLE_SECONDS = 20.0
"""How long the API server may be unreachable from here after it reported ready."""
LOG_LINES = 15
KEPT_LOGS = 10
"""The number of earlier control planes' job outputs kept in the state directory."""


async def run(settings: config.Settings, *, script: Path | None, options: Sequence[str], is_waiting: bool) -> int:
    """Start the control plane unless it runs; return the exit code.

    Raises:
        errors.JobRefused: sbatch refuses the script.
        errors.Fatal: The job ended before the node was Ready.
    """
    with slurmaccess.slurm(settings) as slurm:
        job = instance.expected(await slurm.jobs(), settings)
        before = _stamp(settings)
        if job is not None and job.state.is_ending:
            print(f"The control plane's job {job.id} is ending; the next one starts after it", flush=True)
            options = [f"--dependency=afterany:{job.id}", *options]
            job = None
        if job is None:
            job_id = await _submit(settings, slurm, script=script, options=options)
            print(f"Submitted the control plane as Slurm job {job_id}", flush=True)
        else:
            job_id = job.id
            print(f"The control plane is there already: Slurm job {job_id}, {job.state.value.lower()}", flush=True)
            if job.state.is_queued:
                job = None
        if not is_waiting:
            return 0
        watch = StartWait(settings, slurm, job_id=job_id, stamp=before if job is None else None)
        try:
            return await watch.until_ready()
        except asyncio.CancelledError:
            print(f"\nJob {job_id} goes on without you: 'hpk status' shows it, 'hpk down' ends it", file=sys.stderr)
            raise


async def _submit(
    settings: config.Settings, slurm: client.Slurm, *, script: Path | None, options: Sequence[str]
) -> str:
    text = read(script)
    version.check(Path(settings.directory.control_plane))
    try:
        jobdir.make_directory(str(settings.state))
    except OSError as error:
        why = f"{error.strerror}{placement.advice(error)}"
        raise errors.Fatal(f"Cannot make {settings.state}: {why}") from error
    _forget_old_logs(settings)
    # A job without room for its output could not report that.
    await asyncio.to_thread(placement.measure, settings.state)
    comment = ownership.comment(settings.state.absolute())
    named = [f"--output={log(settings)}", f"--comment={comment}"]
    return await slurm.submit(text, directory=settings.state, options=[*named, *options])


def _forget_old_logs(settings: config.Settings) -> None:
    """Delete all but the last outputs of control planes' jobs; each may have some megabytes."""
    with contextlib.suppress(OSError):
        logs = sorted(settings.state.glob("hpk-*.log"), key=lambda path: path.stat().st_mtime)
        for path in logs[:-KEPT_LOGS]:
            path.unlink()


def read(script: Path | None) -> str:
    """Return the text of the named sbatch script, else the user's own, else the bundled one."""
    if script is None:
        own = Path("~/hpk.sbatch").expanduser()
        script = own if own.exists() else data_files.file("hpk.sbatch")
    try:
        return script.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise errors.Fatal(f"Cannot read the sbatch script {script}: {error.strerror}") from error


def log(settings: config.Settings) -> Path:
    """Return the path of the control plane job's output, with sbatch's pattern."""
    return settings.state / "hpk-%j.log"


def _stamp(settings: config.Settings) -> int | None:
    """Return a value that changes when the control plane publishes its kubeconfig, once the node exists."""
    try:
        return os.stat(settings.directory.kubeconfig).st_mtime_ns  # noqa: PTH116 - jobdir's paths are strings
    except OSError:
        return None


class StartWait:
    """A wait for the node to be Ready or the job to be over; it polls the state directory often and Slurm seldom."""

    def __init__(self, settings: config.Settings, slurm: client.Slurm, *, job_id: str, stamp: int | None) -> None:
        self._settings = settings
        self._slurm = slurm
        self._job_id = job_id
        self._stamp = stamp
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._poll = slurmaccess.JobPoll(slurm, PAUSES)
        self._announced_at: float | None = None
        self._job: model.Job | None = None

    async def until_ready(self) -> int:
        """Show progress until the node is Ready; return 0."""
        from rich import console  # noqa: PLC0415 - slow to import

        screen = console.Console(stderr=True)
        with screen.status("Waiting for Slurm") as spinner:
            told = ""

            def tell(text: str) -> None:
                nonlocal told
                if text == told:
                    return
                told = text
                if screen.is_terminal:
                    spinner.update(text)
                else:
                    print(text, file=sys.stderr, flush=True)

            look = await self._look_until_ready(tell)
        elapsed = self._loop.time() - self._began_at
        command = "hpk kubectl get nodes" if look.tunnel else "kubectl get nodes"
        print(
            f"Node {self._settings.node_name} is Ready after {elapsed:.1f} s: {command}   ({look.tunnel or look.url})"
        )
        if look.tunnel:
            print("This host needs a tunnel: 'hpk kubectl' opens one by itself; run 'hpk connect' for other programs")
        return 0

    async def _look_until_ready(self, tell: Callable[[str], None]) -> cluster.Look:
        while True:
            if _stamp(self._settings) != self._stamp:
                look = await cluster.look(self._settings, self._slurm)
                if look.is_ready:
                    return look
                self._check_reachable(look)
                tell(f"The control plane runs; the node is not Ready yet: {look.problem or look.message}")
            elif (holder := instance.owner(self._settings.directory)) and holder.job_id == self._job_id:
                tell(f"The control plane starts on {holder.host}")
            elif self._job is not None:
                tell(waiting(self._job))
            if await self._poll.poll():
                await self._check_job()
            await asyncio.sleep(LOOK_SECONDS)

    async def _check_job(self) -> None:
        self._job = self._poll.jobs.get(self._job_id)
        if self._job is None or self._job.state.is_over:
            word = "is gone" if self._job is None else f"ended as {self._job.state.value}"
            tail = await self._tail()
            raise errors.Fatal(f"Cannot start the control plane: job {self._job_id} {word}\n{tail}")
        owner = instance.owner(self._settings.directory)
        if ownership.relation(self._job, self._settings.state, owner) is ownership.Relation.ANOTHERS:
            raise errors.Fatal(
                f"Cannot wait for job {self._job_id}: it is the control plane of another directory "
                f"({self._job.comment}); run 'hpk up' again to start this one's"
            )

    def _check_reachable(self, look: cluster.Look) -> None:
        self._announced_at = self._announced_at or self._loop.time()
        if look.problem and self._loop.time() - self._announced_at > UNREACHABLE_SECONDS:
            raise errors.ApiUnavailable(
                f"Cannot reach the control plane from this host, though job {self._job_id} is ready: {look.problem}"
            )

    async def _tail(self) -> str:
        try:
            path = await self._slurm.output(self._job_id) or str(log(self._settings)).replace("%j", self._job_id)
            lines = (await asyncio.to_thread(Path(path).read_text, errors="replace")).splitlines()[-LOG_LINES:]
        except (errors.SlurmUnavailable, OSError):
            return "Its output cannot be read; see the file that --output names"
        return "\n".join([f"The end of {path}:", *(f"  {line}" for line in lines)])


def waiting(job: model.Job) -> str:
    """Return why the job is not running yet, worded for users."""
    if job.state.is_queued:
        reason = f" ({job.reason})" if job.reason else ""
        since = f", expected {time.strftime('%H:%M', time.localtime(job.start_time))}" if job.start_time else ""
        return f"Job {job.id} waits in Slurm's queue{reason}{since}"
    return f"Job {job.id} is {job.state.value.lower()} on {job.nodes or 'no node yet'}; the container starts"
