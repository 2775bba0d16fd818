"""The simulated cluster, for tests: commands on its hosts, jobs, and their ends."""

import contextlib
import pathlib
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

SITE = pathlib.Path(__file__).with_name("site")
RUN = secrets.token_hex(3)
"""Of this process, in its jobs' outputs: homes outlive clusters, whose job numbers begin at 1 again."""
FINISHED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL"}


def site(*arguments: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    """Run `site ARGUMENTS` and return what became of it."""
    argv = [str(SITE), *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=seconds, check=False)


def run(
    host: str, *command: str, user: str = "alice", stdin: str | None = None, seconds: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command on a host as a user and return what became of it."""
    argv = [str(SITE), "run", "--user", user, host, "--", *command]
    return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=seconds, check=False)


def out(host: str, *command: str, user: str = "alice", stdin: str | None = None, seconds: float = 60) -> str:
    """Run a command on a host and return its stdout without the last newline; an assertion if it fails."""
    done = run(host, *command, user=user, stdin=stdin, seconds=seconds)
    assert done.returncode == 0, f"{command} on {host}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.removesuffix("\n")


@contextlib.contextmanager
def started(host: str, *command: str, user: str = "alice") -> Iterator["subprocess.Popen[str]"]:
    """Run a command on a host in the background, its stdout a pipe; it is ended on leaving."""
    argv = [str(SITE), "run", "--user", user, host, "--", *command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(probe: Callable[[], T | None], *, what: str, seconds: float = 30) -> T:
    """Return the probe's first true answer; an assertion that names `what` when the time is up."""
    deadline = time.monotonic() + seconds
    while not (answer := probe()):
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return answer


def submit(script: str, *flags: str, user: str = "alice") -> str:
    """Submit a batch script's text with flags and return the job's id; see :func:`output`."""
    text = f"#!/bin/bash\n{script}\n"
    return out("ctl", "sbatch", "--parsable", f"--output=job-{RUN}-%j.out", *flags, user=user, stdin=text)


def output(job: str, *, user: str = "alice") -> str:
    """What a job has written by now; nothing before it has begun."""
    return run("ctl", "cat", f"job-{RUN}-{job}.out", user=user).stdout


def remove_outputs() -> None:
    """Of all this process's jobs."""
    for user in ("alice", "bob"):
        run("ctl", "sh", "-c", f"rm -f job-{RUN}-*.out", user=user)


def finished(job: str, *, user: str = "alice", seconds: float = 60) -> str:
    """Wait for a job's end and return its output; an assertion if it does not end well."""
    state = end(job, user=user, seconds=seconds)
    text = output(job, user=user)
    assert state == "COMPLETED", f"job {job} is {state}:\n{text}"
    return text


def end(job: str, *, user: str = "alice", seconds: float = 60) -> str:
    """Wait for a job's end and return its state."""

    def state() -> str | None:
        word = out("ctl", "squeue", "--states=all", "--noheader", "--jobs", job, "--format=%T", user=user)
        return word if word in FINISHED else None

    return eventually(state, what=f"the end of job {job}", seconds=seconds)
