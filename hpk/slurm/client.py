"""Slurm's commands as calls, and the meaning of their answers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.slurm import model, parse, refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized
    from pathlib import Path

    from hpk.slurm import runner

SUBMIT_SECONDS = 60.0
"""sbatch itself retries for a while when slurmctld is busy."""
TUNNEL_SECONDS = 110.0
"""Each way to make a tunnel may take half a minute, and may wait for another tunnel."""


class Slurm:
    """Slurm's commands as calls. Each call runs one command on the host and never repeats it.

    Each raises errors.SlurmUnavailable if there is no answer, which says nothing about any job.
    """

    def __init__(self, runner: runner.Runner, *, uid: int | None = None) -> None:
        self._runner = runner
        self._uid = os.getuid() if uid is None else uid
        self._partitions: tuple[str, ...] = ()
        self._reader = parse.JobReader()

    async def submit(self, script: str, *, directory: Path, options: Iterable[str] = ()) -> str:
        """Submit a job and return its id.

        The script's bytes reach sbatch unchanged; options override those in it. Output paths start at the directory.

        Raises:
            errors.JobRefused: Permanently; the message is sbatch's.
            errors.SlurmUnavailable: For now; ``may_have_succeeded`` says whether to look for the job first.
        """
        result = await self._runner.run(
            "sbatch",
            "--parsable",
            f"--chdir={directory}",
            *options,
            stdin=script.encode("utf-8", "surrogateescape"),
            directory=directory,
            timeout_seconds=SUBMIT_SECONDS,
        )
        job_id = parse.job_id(result.text)
        if result.end == "exited" and result.code == 0 and job_id is not None:
            return job_id
        if result.has_no_say or job_id is not None:
            raise errors.SlurmUnavailable(
                f"Cannot tell whether the job was submitted: sbatch {result.how}", may_have_succeeded=True
            )
        raise await self._refusal(result)

    async def _refusal(self, result: runner.CommandResult) -> errors.HpkError:
        text = result.error
        if refusals.is_passing(text):
            return errors.SlurmUnavailable(
                text,
                may_have_succeeded=bool(refusals.PERHAPS_DONE.search(text)),
                limits_rate=bool(refusals.RATE_LIMIT.search(text)),
            )
        if "invalid partition" in text.lower():
            try:
                known = await self.known_partitions()
            except errors.SlurmUnavailable:
                known = ()
            if known:
                text += f" (known: {', '.join(sorted(known))})"
        return errors.JobRefused(text)

    async def jobs(self) -> dict[str, model.Job]:
        """Return all jobs of this user that slurmctld knows, including those that ended within MinJobAge."""
        mark = parse.mark()
        result = await self._query(
            "squeue",
            "--local",  # avoids a federation lookup for each query
            "--noheader",
            "--states=all",
            f"--user={self._uid}",
            f"--format={parse.squeue_format(mark)}",
        )
        # Ten thousand jobs take a tenth of a second to read; do not block agents and kubectl meanwhile.
        try:
            found = await asyncio.to_thread(lambda: self._reader.read(result.text, mark=mark))
        except ValueError as error:
            raise errors.SlurmUnavailable(f"Cannot read what squeue printed: {error}") from error
        _check_read(result, "squeue", found)
        return found

    async def output(self, job_id: str) -> str | None:
        """Return the file that the job's script writes to, or None if slurmctld no longer knows the job."""
        return parse.field(await self._shown(job_id), name="StdOut")

    async def details(self, job_id: str) -> model.Job | None:
        """Return the job with its exit code as slurmctld knows it, or None if it has forgotten it."""
        return parse.job_details(await self._shown(job_id))

    async def _shown(self, job_id: str) -> str:
        result = await self._runner.run("scontrol", "show", "job", job_id)
        if _is_answer(result):
            return result.text
        raise errors.SlurmUnavailable(result.error or f"scontrol {result.how}")

    async def accounting(self, ids: Iterable[str]) -> dict[str, model.Job]:
        """Return what accounting knows of these jobs; empty if the site has no accounting."""
        wanted = ",".join(ids)
        if not wanted:
            return {}
        mark = parse.mark()
        try:
            result = await self._query(
                "sacct",
                "--allocations",
                "--noheader",
                "--parsable2",
                f"--delimiter={parse.UNIT}{mark}",
                f"--format={','.join(parse.SACCT_FIELDS)}",
                f"--jobs={wanted}",
            )
        except errors.SlurmUnavailable as error:
            if "accounting storage is disabled" in str(error) or "no 'sacct'" in str(error):
                return {}
            raise
        return parse.accounting(result.text, mark=mark)

    async def cancel(self, job_id: str, *, signal: str | None = None, only_pending: bool = False) -> None:
        """End the job, or send it a signal; do nothing if it has ended.

        Args:
            job_id: A job of this user.
            signal: A name such as ``TERM``, sent to the job's script, which forwards it; None ends the job.
            only_pending: Leave the job alone unless it is queued.

        Raises:
            errors.JobRefused: The job is not this user's.
        """
        options = [] if signal is None else [f"--signal={signal}", "--batch"]
        options += ["--state=PENDING"] if only_pending else []
        result = await self._runner.run("scancel", *options, job_id)
        if _is_answer(result):
            return
        text = result.error or f"scancel {result.how}"
        if "denied" in text.lower():
            raise errors.JobRefused(text)
        raise errors.SlurmUnavailable(text, limits_rate=bool(refusals.RATE_LIMIT.search(text)))

    async def cancel_many(self, ids: Iterable[str]) -> None:
        """End the jobs with one command; ignore those that have ended."""
        if not (wanted := list(ids)):
            return
        result = await self._runner.run("scancel", *wanted)
        if not _is_answer(result):
            raise errors.SlurmUnavailable(result.error or f"scancel {result.how}")

    async def site(self, *, apptainer: str = "apptainer") -> Mapping[str, Any]:
        """Return the facts about the gateway's host, with the keys of :func:`hpk.host.survey.site`."""
        found: dict[str, Any] = json.loads((await self._query("site", apptainer)).text)
        return found

    async def tunnel(self, *options: str) -> dict[str, Any]:
        """Return the record of a tunnel to the control plane's host, started if none runs (:mod:`hpk.host.tunnel`).

        Raises:
            errors.ApiUnavailable: No tunnel can be made; the message says why.
        """
        result = await self._runner.run("tunnel", *options, timeout_seconds=TUNNEL_SECONDS)
        if result.end != "exited":
            raise errors.ApiUnavailable(f"Cannot make a tunnel to the API server: it {result.how}")
        record: dict[str, Any] = json.loads(result.text or '{"error": "it ended at once"}')
        if problem := record.get("error"):
            raise errors.ApiUnavailable(f"Cannot make a tunnel to the API server: {problem}")
        return record

    async def has_tunnel_ended(self) -> bool:
        """Return whether the tunnel that this gateway started last has ended."""
        codes: list[int | None] = json.loads((await self._query("tunnels")).text)
        return bool(codes) and codes[-1] is not None

    async def capacity(self) -> model.ClusterCapacity:
        """Return the nodes, the partitions and the total resources of the usable nodes."""
        result = await self._query("sinfo", "--local", "--noheader", "--Node", f"--format={parse.SINFO_FORMAT}")
        capacity = parse.capacity(result.text)
        _check_read(result, "sinfo", capacity.nodes)
        self._partitions = tuple(capacity.partitions)
        return capacity

    async def partition_names(self) -> frozenset[str]:
        """Return the names of all partitions, including those hidden from this user."""
        shown = await self._query("scontrol", "--all", "--oneliner", "show", "partition")
        return frozenset(parse.partition_names(shown.text))

    async def architectures(self) -> dict[str, str]:
        """Return the architecture of each node that has ever reported, such as ``amd64``."""
        return parse.architectures((await self._query("scontrol", "--oneliner", "show", "node")).text)

    async def known_partitions(self) -> tuple[str, ...]:
        """Return the partitions' names as :meth:`capacity` last saw them."""
        if not self._partitions:
            await self.capacity()
        return self._partitions

    async def kill_wait_seconds(self) -> int:
        """Return how long Slurm waits between SIGTERM and SIGKILL (KillWait in slurm.conf)."""
        return parse.kill_wait_seconds((await self._query("scontrol", "show", "config")).text)

    async def _query(self, command: str, *arguments: str) -> runner.CommandResult:
        result = await self._runner.run(command, *arguments)
        if result.end == "exited" and result.code == 0:
            return result
        text = f"it {result.how}" if result.end != "exited" or not result.error else result.error
        raise errors.SlurmUnavailable(
            f"Cannot ask Slurm ({command}): {text}", limits_rate=bool(refusals.RATE_LIMIT.search(text))
        )


def _check_read(result: runner.CommandResult, command: str, found: Sized) -> None:
    """Reject an unreadable answer: taken for an empty one, it would mean that all jobs are gone.

    Raises:
        errors.SlurmUnavailable: The command printed text, and nothing was read from it.
    """
    if not found and result.text.strip():
        said = parse.messages(result.text)[:200]
        raise errors.SlurmUnavailable(f"Cannot ask Slurm ({command}): it printed something unexpected: {said!r}")


def _is_answer(result: runner.CommandResult) -> bool:
    """Return whether the command succeeded, or reports that the job is gone."""
    gone = ("Invalid job id", "already completing", "already finished")
    return result.end == "exited" and (result.code == 0 or any(words in result.error for words in gone))
