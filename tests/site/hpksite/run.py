"""`site run`: a command on a host, as a login would start it."""
# The quick path: pathlib alone would double what it imports.
# ruff: noqa: PTH123, T201

import os
import sys

from . import paths

USAGE = "usage: site run [--user NAME] HOST -- COMMAND [ARGUMENT ...]"
DESCRIPTORS = 1024  # open files that a login shell begins with, as systemd and PAM have it; it may have more
PATH = "/usr/local/bin:/usr/bin:/bin"
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class UsageError(Exception):
    """The command line is not one of `site run`."""


def start_time(pid: int) -> str:
    """Return when the kernel started a process, in ticks since boot: with the pid, its identity.

    An OSError if there is none, or if it has ended and only waits to be reaped.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stat:
        fields = stat.read().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(pid)
    return fields[19]


def host_pid(host: str) -> int | None:
    """Return the pid of a host's first process, or None if the host is not up (or its pid is another's by now)."""
    try:
        with open(paths.pid_file(host), encoding="ascii") as file:
            pid, started = file.read().split()
        return int(pid) if start_time(int(pid)) == started else None
    except (OSError, ValueError, IndexError):
        return None


def parse(arguments: list[str]) -> tuple[str, str, list[str]]:
    """Return (user, host, command); everything after `--` is the command, byte for byte."""
    if "--" not in arguments:
        raise UsageError
    cut = arguments.index("--")
    options, command = arguments[:cut], arguments[cut + 1 :]
    user = "root"
    positional: list[str] = []
    while options:
        option = options.pop(0)
        if option == "--user" and options:
            user = options.pop(0)
        elif option.startswith("--user="):
            user = option.removeprefix("--user=")
        elif option.startswith("-"):
            raise UsageError
        else:
            positional.append(option)
    if len(positional) != 1 or not command or not user:
        raise UsageError
    return user, positional[0], command


def entering(pid: int, *, user: str, command: list[str]) -> list[str]:
    """Return the argv that runs a command in a host: its namespaces, the user's ids, a login's environment.

    The command gets SIGTERM when the argv's own process ends, so a test that times out leaves
    nothing running; what the command has put in the background lives on.
    """
    path = ROOT_PATH if user == "root" else PATH
    limit = "" if user == "root" else f"ulimit -S -n {DESCRIPTORS}; "
    login = f'{limit}PATH={path} LANG=C.UTF-8; export PATH LANG; cd && unset OLDPWD && exec "$@"'
    return [
        "nsenter", f"--target={pid}", "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd", "--",
        "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env", "--pdeathsig=TERM", "--",
        "/bin/sh", "-c", login, "sh", *command,
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    """Become the command; 2 for a wrong command line, 3 if the host is not up."""
    try:
        user, host, command = parse(arguments)
    except UsageError:
        print(USAGE, file=sys.stderr)
        return 2
    pid = host_pid(host)
    if pid is None:
        print(f"site: cannot run on {host}: no such host is up (site status tells more)", file=sys.stderr)
        return 3
    argv = entering(pid, user=user, command=command)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 -- no shell is the point
    except OSError as error:
        print(f"site: cannot run {argv[0]}: {error.strerror}", file=sys.stderr)
        return 3
