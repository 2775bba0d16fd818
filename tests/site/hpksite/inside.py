"""Commands on a host, as its root: for the cluster's own set-up and checks."""

import subprocess

from . import layout, run, sh


def shell(host: layout.Host, script: str, *, stdin: str | None = None) -> str:
    """Run a shell script and return its stdout; a SiteError if it fails."""
    return sh.out(*_argv(host, script), stdin=stdin)


def holds(host: layout.Host, script: str) -> bool:
    """Say whether a shell script exits with 0. False if the host is not up."""
    return run.host_pid(host.name) is not None and sh.succeeds(*_argv(host, script))


def spawn(host: layout.Host, script: str) -> None:
    """Start a shell script that outlives this process, as a child of the host's own init; return at once."""
    null = subprocess.DEVNULL
    argv = _argv(host, 'exec setsid --fork /bin/sh -c "$1"', script)  # --fork: nsenter has nothing to wait for
    subprocess.run(argv, stdin=null, stdout=null, stderr=null, check=False)


def _argv(host: layout.Host, script: str, *arguments: str) -> list[str]:
    pid = run.host_pid(host.name)
    if pid is None:
        raise sh.SiteError(f"cannot run on {host.name}: it is not up")
    return run.entering(pid, user="root", command=["/bin/sh", "-euc", script, "sh", *arguments])
