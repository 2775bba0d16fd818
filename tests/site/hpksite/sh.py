"""Running other programs, and the one error that the cluster's own code raises."""

import pathlib
import shlex
import subprocess
import sys


class SiteError(Exception):
    """The cluster cannot do what was asked; the message is for the person at the terminal."""


def say(text: str) -> None:
    """Tell progress on stderr, at once."""
    print(f"site: {text}", file=sys.stderr, flush=True)  # noqa: T201


def out(*argv: str, stdin: str | None = None) -> str:
    """Run a program to its end and return its stdout; a SiteError with its last lines if it fails."""
    # Never the caller's input: a program that asks something would wait for a person, or take what is another's.
    done = subprocess.run(argv, input=stdin or "", capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-20:])
        raise SiteError(f"cannot {shlex.join(argv)[:300]} (exit code {done.returncode}):\n{last}")
    return done.stdout


def logged(log: pathlib.Path, *argv: str) -> None:
    """Run a long program to its end, all that it writes in a file; a SiteError with the file's end if it fails."""
    with log.open("w") as file:
        code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=file, stderr=file, check=False).returncode
    if code:
        raise SiteError(f"cannot {shlex.join(argv)[:200]} (exit code {code}):\n{tail(log)}\nAll of it: {log}")


def shown(*argv: str) -> None:
    """Run a program to its end, its own progress on the terminal (stderr); a SiteError if it fails."""
    code = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode
    if code:
        raise SiteError(f"cannot {shlex.join(argv)[:300]} (exit code {code})")


def succeeds(*argv: str) -> bool:
    """Say whether a program exits with 0; what it prints is dropped."""
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


def tail(path: pathlib.Path, *, lines: int = 20) -> str:
    """Return the last lines of a log, or a word on why there are none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) or f"({path} is empty)"
    except OSError as error:
        return f"(no {path}: {error.strerror})"
