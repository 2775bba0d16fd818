"""Runs Slurm's commands: which ones, with which arguments and environment, and for how long."""

import contextlib
import fnmatch
import os
import pwd
import select
import signal
import subprocess
import time

from hpk.host import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable
    from typing import Any

MAX_OUTPUT = 64 << 20
"""Limit on stdout, and on stderr, in bytes; squeue of 100000 jobs prints 25 MB."""

POLLRDHUP = 0x2000  # Linux; not in every build of the select module

READ_ONLY_VERBS = {
    "scontrol": ("show", "ping", "version"),
    "sacctmgr": ("show", "list"),
}
REFUSED_OPTIONS = {"sdiag": ("-r", "--reset")}
COMMANDS = ("sbatch", "squeue", "sinfo", "scancel", "sacct", "sdiag", "scontrol", "sacctmgr")

# sbatch passes its whole environment to the job, and SBATCH_* variables override the script's options; so commands get
# only these. The functions and paths of environment modules are for "module load" in a job.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "LD_LIBRARY_PATH", "SHELL",
    "BASH_FUNC_module%%", "BASH_FUNC_ml%%", "BASH_FUNC__module_raw%%", "MODULEPATH", "MODULESHOME",
    "MODULES_CMD", "LMOD_CMD", "LMOD_DIR", "LMOD_PKG", "LMOD_ROOT", "LMOD_SETTARG_FULL_SUPPORT",
)  # fmt: skip


def environment(keep: "Iterable[str]") -> "dict[str, str]":
    """Return the environment of every command: complete, minimal, plus the variables that match ``keep`` (globs)."""
    made = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    for pattern in keep:
        made.update((name, os.environ[name]) for name in fnmatch.filter(os.environ, pattern))
    account = pwd.getpwuid(os.getuid())
    made.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    made.setdefault("HOME", account.pw_dir)
    made.setdefault("USER", account.pw_name)
    made.setdefault("LOGNAME", account.pw_name)
    made["SLURM_TIME_FORMAT"] = "%s"  # squeue, sinfo, sacct: seconds since 1970 instead of local time
    return made


def check(command: str, arguments: "list[str]") -> None:
    """Raise protocol.InvalidRequest unless this command may be run with these arguments."""
    if command not in COMMANDS:
        raise protocol.InvalidRequest(f"the gateway does not run '{command}' (it runs {', '.join(COMMANDS)})")
    if command in READ_ONLY_VERBS:
        verb = next((word for word in arguments if not word.startswith("-")), "")
        if verb not in READ_ONLY_VERBS[command]:
            raise protocol.InvalidRequest(
                f"the gateway runs '{command}' only with {', '.join(READ_ONLY_VERBS[command])}"
            )
    for option in REFUSED_OPTIONS.get(command, ()):
        if option in arguments:
            raise protocol.InvalidRequest(f"the gateway does not run '{command} {option}'")


def find(name: str, env: "dict[str, str]") -> "str | None":
    """Return the path of a command on the environment's PATH, or None; importing shutil for its which takes 4 ms."""
    places = [name] if "/" in name else [os.path.join(directory, name) for directory in env["PATH"].split(":")]
    return next((place for place in places if os.path.isfile(place) and os.access(place, os.X_OK)), None)


def run(
    argv: "list[Any]",
    *,
    program: "str | None" = None,
    stdin: bytes = b"",
    directory: "str | None" = None,
    timeout_seconds: float = 30,
    env: "dict[str, str] | None" = None,
    connection: "socket.socket | None" = None,
) -> "protocol.Result":
    """Run a command in its own process group; return (code, stdout, stderr, end).

    The group is killed when time is up, when there is too much output, or when the connection's peer leaves.
    """
    # Descriptors are close-on-exec (PEP 446); close_fds would only take time.
    child = subprocess.Popen(
        argv,
        executable=program,  # argv[0] stays the plain name, with which messages begin
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        close_fds=False,
        start_new_session=True,
        cwd=directory,
        env=env,
    )
    conversation = Conversation(child, stdin, connection)
    end = "failed"
    try:
        end = conversation.hold(time.monotonic() + timeout_seconds)
    finally:
        if end != "exited":
            _kill_group(child)
        conversation.close()
        child.wait()
    return child.returncode, b"".join(conversation.stdout), b"".join(conversation.stderr), end


class Conversation:
    """Feeds a child its input and collects its output, with one poll."""

    def __init__(self, child: "subprocess.Popen[bytes]", stdin: bytes, connection: "socket.socket | None") -> None:
        self.child = child
        self.stdout = []  # type: list[bytes]
        self.stderr = []  # type: list[bytes]
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        self.stdin = child.stdin
        self.outputs = {child.stdout.fileno(): self.stdout, child.stderr.fileno(): self.stderr}
        self.sizes = dict.fromkeys(self.outputs, 0)
        self.feed = child.stdin.fileno()
        self.left_to_feed = memoryview(stdin)
        self.peer = -1 if connection is None else connection.fileno()
        self.poller = select.poll()
        for descriptor in self.outputs:
            self.poller.register(descriptor, select.POLLIN)
        if stdin:
            os.set_blocking(self.feed, False)
            self.poller.register(self.feed, select.POLLOUT)
        else:
            child.stdin.close()
        if connection is not None:
            self.poller.register(self.peer, select.POLLHUP | POLLRDHUP)

    def hold(self, deadline: float) -> str:
        """Talk until the child has ended, and return ``exited``, or what happened instead."""
        open_outputs = set(self.outputs)
        while open_outputs:
            for descriptor, _ in self.poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
                if descriptor == self.peer:
                    return "abandoned"
                if descriptor == self.feed:
                    self._write()
                elif not self._read(descriptor):
                    open_outputs.discard(descriptor)
                elif self.sizes[descriptor] > MAX_OUTPUT:
                    return "overflow"
            if time.monotonic() >= deadline:
                return "timeout"
        try:
            self.child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return "timeout"
        return "exited"

    def close(self) -> None:
        """Close our ends of the pipes."""
        for stream in (self.stdin, self.child.stdout, self.child.stderr):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _write(self) -> None:
        try:
            self.left_to_feed = self.left_to_feed[os.write(self.feed, self.left_to_feed[:65536]) :]
        except BlockingIOError:
            return
        except OSError:  # the child closed its input
            self.left_to_feed = self.left_to_feed[:0]
        if not self.left_to_feed:
            self.poller.unregister(self.feed)
            self.stdin.close()
            self.feed = -1

    def _read(self, descriptor: int) -> bool:
        part = os.read(descriptor, 1 << 16)
        if part:
            self.sizes[descriptor] += len(part)
            self.outputs[descriptor].append(part)
        else:
            self.poller.unregister(descriptor)
        return bool(part)


def _kill_group(child: "subprocess.Popen[bytes]") -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, signal.SIGKILL)
