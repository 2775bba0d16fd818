"""Slurm without Slurm: scripted conversations, and texts that real Slurms have printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpk.slurm import parse, runner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from hpk import errors
    from hpk.slurm import model

REFUSALS = {
    # Slurm 24.11.5, recorded.
    "partition": "sbatch: error: invalid partition specified: nosuch\n"
    "sbatch: error: Batch job submission failed: Invalid partition name specified\n",
    "memory": "sbatch: error: Memory specification can not be satisfied\n"
    "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
    "cpus": "sbatch: error: CPU count per node can not be satisfied\n"
    "sbatch: error: Batch job submission failed: Requested node configuration is not available\n",
    "time": "sbatch: error: Invalid --time specification\n",
    "node": "sbatch: error: Batch job submission failed: Invalid node name specified\n",
    "gres": "sbatch: error: Invalid generic resource (gres) specification\n",
    "feature": "sbatch: error: Batch job submission failed: Invalid feature specification\n",
    "reservation": "sbatch: error: Batch job submission failed: Requested reservation is invalid\n",
    "option": "sbatch: unrecognized option '--nosuchopt'\nTry \"sbatch --help\" for more information\n",
    "license": "sbatch: error: Batch job submission failed: Invalid license specification\n",
    "dependency": "sbatch: error: Batch job submission failed: Job dependency problem\n",
    "empty": "sbatch: error: Batch script is empty!\n",
    # From Slurm's sources and reports.
    "account": "sbatch: error: Batch job submission failed: Invalid account or account/partition combination "
    "specified\n",
    "qos": "sbatch: error: Batch job submission failed: Invalid qos specification\n",
    "limit": "sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or exceeds some "
    "limit)\n",
    "group": "sbatch: error: Batch job submission failed: User's group not permitted to use this partition\n",
    "denied": "sbatch: error: Batch job submission failed: Access/permission denied\n",
    "wall": "sbatch: error: QOSMaxWallDurationPerJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
    "and/or time limits)\n",
    "no-partition": "sbatch: error: Batch job submission failed: No partition specified or system default partition\n",
    "nodes": "sbatch: error: Batch job submission failed: Node count specification invalid\n",
    "processors": "sbatch: error: Batch job submission failed: More processors requested than permitted\n",
    "elsewhere": "sbatch: error: Batch job submission failed: Requested nodes not in this partition\n",
    "wckey": "sbatch: error: Batch job submission failed: Invalid wckey specification\n",
    "time-missing": "sbatch: error: Batch job submission failed: Time limit specification required, but not provided\n",
    "association": "sbatch: error: Batch job submission failed: Invalid or unknown association\n",
    "versions": "sbatch: error: Batch job submission failed: Incompatible versions of client and server code\n",
    "topology": "sbatch: error: Batch job submission failed: Requested topology configuration is not available\n",
    "tres": "sbatch: error: Batch job submission failed: Invalid Trackable RESource (TRES) specification\n",
    "reservation-denied": "sbatch: error: Batch job submission failed: Access denied to requested reservation\n",
    "plugin": "sbatch: error: You must name a project with --account\n"
    "sbatch: error: Batch job submission failed: Unspecified error\n",
}
"""What sbatch prints when trying again will not help."""

OUTAGES = {
    "away": "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n",
    "timed-out": "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n",
    "zero": "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n",
    "submit-limit": "sbatch: error: AssocMaxSubmitJobLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
    "and/or time limits)\n",
    "qos-limit": "sbatch: error: QOSMaxSubmitJobPerUserLimit\n"
    "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size "
    "and/or time limits)\n",
    "some-limit": "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, "
    "user's size and/or time limits)\n",
    "queue-full": "sbatch: error: Slurm job queue full, sleeping and retrying\n"
    "sbatch: error: Batch job submission failed: MaxJobCount limit reached\n",
    "busy": "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying\n"
    "sbatch: error: Batch job submission failed: Resource temporarily unavailable\n",
    "munge": "sbatch: error: If munged is up, restart with --num-threads=10\n"
    'sbatch: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory\n'
    "sbatch: error: Batch job submission failed: Protocol authentication error\n",
    "standby": "sbatch: error: Batch job submission failed: Slurm backup controller in standby mode\n",
    "rate": "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry momentarily\n",
    "submissions-disabled": "sbatch: error: Batch job submission failed: System submissions disabled\n",
    "partition-down": "sbatch: error: Batch job submission failed: Partition in DOWN state\n",
    "maintenance": "sbatch: error: Batch job submission failed: Job can not start due to maintenance reservation.\n",
    "powered": "sbatch: error: Batch job submission failed: Max powered up nodes reached\n",
    "clock": "sbatch: error: Batch job submission failed: Authentication credential expired\n",
    "delayed": "sbatch: error: Batch job submission failed: Kernel reported delayed socket error after successful "
    "write(), client side likely closed\n",
    "other-standby": "sbatch: error: Batch job submission failed: Controller is in standby mode, try a different "
    "controller\n",
    "quiesce": "sbatch: error: Batch job submission failed: Connection forced closed by quiesce timeout\n",
    "closing": "sbatch: error: Batch job submission failed: Process is shutting down and closing all communications\n",
    "script": "sbatch: error: Batch job submission failed: I/O error writing script/environment to file\n",
    "rate-later": "sbatch: error: Batch job submission failed: Rate limit exceeded, please retry later\n",
    "drained": "sbatch: error: Batch job submission failed: Required node not available (down, drained or reserved)\n",
    "inactive": "sbatch: error: Batch job submission failed: Required partition not available (inactive or drain)\n",
}
"""What sbatch prints when it may work later."""

SDIAG = """\
*******************************************************
sdiag output at Sat Nov 28 00:24:00 2026 (1795825440)
*******************************************************
Server thread count:  3
RPC queue enabled:    0
Agent queue size:     7
Agent count:          0

Jobs submitted: 10

Remote Procedure Call statistics by message type
\tREQUEST_SUBMIT_BATCH_JOB                ( 4003) count:28     ave_time:2017   total_time:56491
\tREQUEST_JOB_INFO                        ( 2003) count:5      ave_time:1084   total_time:15182

Remote Procedure Call statistics by user
\talice           (    2000) count:33     ave_time:1726   total_time:56965
\troot            (       0) count:24     ave_time:669    total_time:16057

Pending RPC statistics
\tNo pending RPCs
"""


@dataclass(frozen=True)
class Call:
    """A command that was run."""

    line: str
    stdin: str
    directory: str | None


class Conversation:
    """A :class:`hpk.slurm.runner.Runner` that answers by a script.

    Each entry is a regular expression of the command line and what comes of it: standard output as a string,
    a whole Result, or an exception.  The first entry that matches answers, and is used up unless it is the
    last that matches; a command that nothing matches fails the test.

    Attributes:
        calls: What was run, in order.
    """

    def __init__(self, *script: tuple[str, str | runner.CommandResult | Exception]) -> None:
        self._script = list(script)
        self.calls: list[Call] = []

    async def run(
        self,
        command: str,
        *arguments: str,
        stdin: bytes = b"",
        directory: Path | None = None,
        timeout_seconds: float = 30.0,
    ) -> runner.CommandResult:
        """Answer by the script."""
        del timeout_seconds
        line = " ".join([command, *arguments])
        self.calls.append(Call(line, stdin.decode(), None if directory is None else str(directory)))
        matching = [entry for entry in self._script if re.search(entry[0], line)]
        assert matching, f"nothing in the script matches: {line}"
        if len(matching) > 1:
            self._script.remove(matching[0])
        reply = matching[0][1]
        if isinstance(reply, Exception):
            raise reply
        if not isinstance(reply, str):
            return reply
        return runner.CommandResult(code=0, stdout=marked(reply, line).encode())


def refusal(stderr: str, *, code: int = 1) -> runner.CommandResult:
    """A command that failed with this text."""
    return runner.CommandResult(code=code, stderr=stderr.encode())


MARKED = "<record>"
"""Stands for a record's end and the question's mark in what a Conversation is to answer."""


def marked(text: str, line: str) -> str:
    """The text as Slurm prints it for this question: with the question's own mark behind each record."""
    found = re.search(f"--format=.*{parse.RECORD}(\\w+)", line, re.DOTALL)
    return text.replace(MARKED, parse.RECORD + (found[1] if found else ""))


def squeue(*rows: tuple[str, ...], end: str = MARKED) -> str:
    """What squeue prints for rows of its fields."""
    return "".join(parse.UNIT.join(row) + end + "\n" for row in rows)


class FakeSource:
    """A :class:`hpk.slurm.poller.JobSource`: a test sets the jobs, or the error, of the next answers.

    Attributes:
        during: Called while a question is under way.
    """

    def __init__(self, jobs: Iterable[model.Job] = ()) -> None:
        self.answer: list[model.Job] = list(jobs)
        self.error: errors.SlurmUnavailable | None = None
        self.during: Callable[[], None] = lambda: None
        self.asked = 0

    async def jobs(self) -> dict[str, model.Job]:
        """The answer that is set now."""
        self.asked += 1
        self.during()
        if self.error is not None:
            raise self.error
        return {job.id: job for job in self.answer}
