"""``hpk doctor``: check the login host, and try a sandbox in one small job per partition."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors, jobdir
from hpk.aio import backoff
from hpk.cli import findings, reach, slurmaccess, up
from hpk.controlplane import mounts
from hpk.host import pack, probe, protocol
from hpk.network import sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from hpk import config
    from hpk.slurm import client

LOOK_SECONDS = 0.2
PAUSES = backoff.BackoffPolicy(first_seconds=2.0, factor=1.5, cap_seconds=15.0)
"""Pauses between questions to Slurm."""
ANSWER_SECONDS = 5.0
"""How long after the job's end a shared file system may take to show another host's file."""
ACCOUNT = re.compile(r"^#SBATCH\s+(?:--account[=\s]\s*|-A\s*)(\S+)", re.MULTILINE)
DOCKER_HUB = "registry-1.docker.io:443"
PROGRAM = "host.pyz"
OPTIONS = ("--time=5", "--ntasks=1", "--cpus-per-task=1", "--mem=512M", "--job-name=hpk-doctor", "--no-requeue")
INSIDE = """
import ctypes, json, os, sys
sys.path.insert(0, "/opt/hpk/lib")
from hpk.agent.boot import linux, sandbox
os.makedirs("/run/hpk/scratch/probe")
linux.mount("tmpfs", "/run/hpk/scratch/probe", "tmpfs")
os.close(os.open("/dev/fuse", os.O_RDWR))
linux.set_hostname("probe")
if ctypes.CDLL(None, use_errno=True).unshare(0x20020000):
    raise OSError(ctypes.get_errno(), "Cannot make mount and PID namespaces")
print(json.dumps({"address": sandbox.own_address()}))
"""
"""The agent's work before its first container, without a pod."""


@dataclass(frozen=True, kw_only=True)
class ProbeJob:
    """A job that examines one partition."""

    partition: str
    job_id: str
    answer: Path
    submitted_at: float

    @property
    def where(self) -> str:
        """The partition, worded for users."""
        return f"partition {self.partition}"


async def run(settings: config.Settings, *, wait_seconds: float, is_json: bool) -> int:
    """Print the findings; return 1 if anything keeps pods from running, else 0.

    Raises:
        errors.SlurmUnavailable: Slurm does not answer.
    """
    jobdir.make_directory(str(settings.state))
    directory = settings.state.absolute() / f"doctor-{secrets.token_hex(4)}"
    directory.mkdir(mode=0o700)
    try:
        with slurmaccess.slurm(settings) as slurm:
            found = await _examine(settings, slurm, directory=directory, wait_seconds=wait_seconds)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if is_json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    else:
        print("\n".join(findings.told(found)))
    return 1 if any(one.level == "error" for one in found) else 0


async def _examine(
    settings: config.Settings, slurm: client.Slurm, *, directory: Path, wait_seconds: float
) -> list[findings.Finding]:
    site = await slurm.site(apptainer=settings.apptainer)
    shared = await asyncio.to_thread(probe.shared, str(directory)) | {"reach": mounts.reach_of(directory)}
    facts = {"site": site, "shared": shared, "routes": probe.routes()}
    wanted = registries(settings)
    missed = await asyncio.to_thread(probe.unreachable, wanted)
    reached = tuple(name for name in wanted if name not in missed)
    found = findings.login(findings.ExaminedHost(where=f"login host {site['hostname']}", facts=facts), settings)
    prepare(settings, site, directory)
    probes: list[ProbeJob] = []
    partitions = collections.deque(await slurm.known_partitions())
    watch = ProbeWait(slurm, site=site, reached=reached, wait_seconds=wait_seconds)
    seen = 0
    try:
        while partitions or seen < len(probes):
            probes += await _submit_many(
                settings, slurm, partitions, directory=directory, found=found, has_others=seen < len(probes)
            )
            if seen < len(probes):
                found += await watch.result(probes[seen], settings=settings)
                seen += 1
    finally:
        left = [one.job_id for one in probes if not one.answer.exists()]
        with contextlib.suppress(errors.SlurmUnavailable):
            await slurm.cancel_many(left)
    return found


def prepare(settings: config.Settings, site: Any, directory: Path) -> None:
    """Write the files of the probes' jobs: the program and its request."""
    (directory / PROGRAM).write_bytes(pack.archive())
    # A missing pod network is a finding of its own; the sandbox must then start without one.
    network = "host" if settings.network != "flannel" and sandbox.missing_for_flannel(site) else "flannel"
    network = "host" if settings.network == "host" else network
    request = {"apptainer": settings.apptainer, "sandbox": inside(settings, network, directory)}
    wanted = {"shared": str(directory), "registries": registries(settings)}
    jobdir.write_json(str(directory / "request.json"), request | wanted, is_durable=False)


def registries(settings: config.Settings) -> list[str]:
    """Return HOST:PORT of Docker Hub and the insecure registries of the settings."""
    plain = [name if ":" in name else f"{name}:80" for name in settings.insecure_registries]
    return [DOCKER_HUB, *plain]


def inside(settings: config.Settings, network: str, directory: Path) -> list[str]:
    """Return the command that starts a pod's sandbox with a probe in place of the agent."""
    place = str(directory)
    image = str(settings.image_file.absolute())
    box = sandbox.Sandbox(
        apptainer=settings.apptainer, image=image, network=network, pod=place, images=place, endpoint=place
    )
    command = sandbox.start(box)
    return [*command[: command.index(image) + 1], sandbox.PYTHON, "-I", "-S", "-c", INSIDE]


def script(settings: config.Settings, directory: Path, answer: Path) -> str:
    """Return the probe's job script."""
    words = (directory / PROGRAM, "probe", directory / "request.json", answer)
    command = " ".join(shlex.quote(str(word)) for word in words)
    return f"""#!/bin/bash
umask 077
{settings.prelude}
export HPK_PROBE_SCRATCH="{settings.scratch}"
set -- {command}
{protocol.FIND_PYTHON}
"""


async def _submit_many(
    settings: config.Settings,
    slurm: client.Slurm,
    partitions: collections.deque[str],
    *,
    directory: Path,
    found: list[findings.Finding],
    has_others: bool,
) -> list[ProbeJob]:
    """Submit a probe for each partition until Slurm takes no more for now; refusals become findings."""
    made: list[ProbeJob] = []
    while partitions:
        try:
            made.append(await _submit(settings, slurm, directory=directory, partition=partitions[0]))
        except (errors.JobRefused, errors.SlurmUnavailable) as error:
            if isinstance(error, errors.SlurmUnavailable) and (made or has_others):
                break  # there may be room again when another probe has ended
            found.append(findings.refused(f"partition {partitions[0]}", str(error)))
        partitions.popleft()
    return made


async def _submit(settings: config.Settings, slurm: client.Slurm, *, directory: Path, partition: str) -> ProbeJob:
    answer = directory / f"{partition}.json"
    output = f"--output={answer.with_suffix('.out')}"
    options = [*OPTIONS, *account(settings), *shlex.split(settings.flags), output, f"--partition={partition}"]
    submitted_at = time.time()
    job_id = await slurm.submit(script(settings, directory, answer), directory=directory, options=options)
    return ProbeJob(partition=partition, job_id=job_id, answer=answer, submitted_at=submitted_at)


def account(settings: config.Settings) -> list[str]:
    """Return the option for the account of pods whose flags name none: the control plane's, as in hpk.sbatch."""
    try:
        text = up.read(None)
    except errors.Fatal:
        text = ""
    found = [settings.account] if settings.account else ACCOUNT.findall(text)
    return [f"--account={name}" for name in found[-1:]]


class ProbeWait:
    """A wait for the probes' answers that polls the file system often and Slurm seldom."""

    def __init__(
        self, slurm: client.Slurm, *, site: Mapping[str, Any], reached: tuple[str, ...], wait_seconds: float
    ) -> None:
        self._poll = slurmaccess.JobPoll(slurm, PAUSES)
        self._site = site
        self._reached = reached
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + wait_seconds
        self._wait_seconds = wait_seconds
        self._is_filtered = False

    async def result(self, one: ProbeJob, *, settings: config.Settings) -> list[findings.Finding]:
        """Wait for a probe; return its findings, or why it has none."""
        over_at: float | None = None
        while True:
            if one.answer.exists():
                return await self._read(one, settings=settings)
            job = self._poll.jobs.get(one.job_id)
            if job is not None and job.state.is_over:
                over_at = over_at or self._loop.time()
                if self._loop.time() - over_at > ANSWER_SECONDS:
                    return [findings.silent(one.where, job.state.value, _output(one))]
            elif self._loop.time() > self._deadline:
                reason = job.reason if job is not None and job.state.is_queued else ""
                return [findings.waits(one.where, self._wait_seconds, reason)]
            await self._poll.poll()
            await asyncio.sleep(LOOK_SECONDS)

    async def _read(self, one: ProbeJob, *, settings: config.Settings) -> list[findings.Finding]:
        facts = jobdir.read_json(str(one.answer))
        # The provable skew: the answer was written after the submission and before it was seen.
        skew = min(0.0, facts["now"] - one.submitted_at) or max(0.0, facts["now"] - time.time())
        where = f"{one.where} ({facts['site']['hostname']})"
        place = findings.ExaminedHost(
            where=where,
            facts=facts,
            skew_seconds=skew,
            reached=self._reached,
            architecture=str(self._site["architecture"]),
        )
        found = findings.compute(place, settings)
        is_elsewhere = facts["site"]["hostname"] != self._site["hostname"]
        if not self._is_filtered and is_elsewhere and await reach.is_filtered(facts["site"]["hostname"]):
            self._is_filtered = True  # report it once
            found.append(findings.filtered(where))
        return found


def _output(one: ProbeJob) -> str:
    try:
        text = one.answer.with_suffix(".out").read_text(errors="replace").strip()
    except OSError:
        return ""
    return text.rpartition(os.linesep)[2]
