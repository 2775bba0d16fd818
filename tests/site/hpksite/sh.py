"""Running other programs, and the one error that the cluster's own code raises."""

import shlex
import subprocess
import sys
import time
from collections.abc import Callable


class SiteError(Exception):
    """The cluster cannot do what was asked; the message is for the person at the terminal."""


def say(text: str) -> None:
    """Tell progress on stderr, at once."""
    print(f"site: {text}", file=sys.stderr, flush=True)


def out(*argv: str, stdin: str | None = None, log: str | None = None) -> str:
    """Run a program to its end and return its stdout.

    A failure is a SiteError that carries the last lines it wrote. With `log`, everything it writes
    goes to that file instead and the return value is empty.
    """
    if log is not None:
        with open(log, "w", encoding="utf-8") as file:
            code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
        if code:
            raise SiteError(f"cannot {shlex.join(argv)[:200]} (exit code {code}):\n{tail(log)}\nAll of it: {log}")
        return ""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise SiteError(f"cannot {shlex.join(argv)[:300]} (exit code {done.returncode}):\n{last}")
    return done.stdout


def succeeds(*argv: str) -> bool:
    """Say whether a program exits with 0; what it prints is dropped."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def tail(path: str, *, lines: int = 20) -> str:
    """Return the last lines of a log, or a word on why there are none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return "\n".join(file.read().splitlines()[-lines:]) or f"({path} is empty)"
    except OSError as error:
        return f"(no {path}: {error.strerror})"


def wait_until(ready: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Return as soon as `ready()` holds; a SiteError naming `what` when the time is up."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise SiteError(f"cannot go on: {what} is not there after {seconds:.0f} s")
        time.sleep(0.02)
