"""The gateway: runs Slurm's commands on the host for a program inside the container.

    python3 host.pyz gateway /path/of/socket [--keep 'HPK_*' ...]

It listens on a Unix socket that only its own user may use, and serves until its standard input ends (its
parent holds the other end: no signal is needed, and SIGTERM from Slurm, which reaches every process of a job
at once, must not cut off the program that still has jobs to look after).

Protocol, version 1.  One connection carries one request and one answer, so a client that goes away ends what
it asked for.  Either message is ``uint32 length | JSON header | payload``, big-endian:

    request   {"version": 1, "command": "sbatch", "arguments": [...], "stdin": bytes that follow,
               "directory": "/..." or null, "timeout_seconds": 30}
    answer    {"version": 1, "code": 0, "stdout": bytes, "stderr": bytes, "end": "exited"}

``end`` is ``exited``; or ``timeout`` or ``overflow``, after which the command's whole process group was
killed; or ``refused``, when the request was not understood and stderr says why: nothing was run; or ``failed``, when
the gateway itself met an error, and whether the command did its work is not known.  A signalled command has a negative
code.  Three commands are the gateway's own.  ``site``: its stdout is a JSON object of what the host has.
``tunnel OPTION...``: has :mod:`.tunnel` serve in the background; its stdout is that program's one line.  With
``--hold`` it ends with the gateway.  ``tunnels``: a JSON list, for each that was started its
exit code, or null while it runs: whoever was killed outright cannot say so himself.
"""

import argparse
import array
import contextlib
import fcntl
import fnmatch
import glob
import json
import os
import platform
import pwd
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    Result = tuple[int, bytes, bytes, str]

VERSION = 1
MAX_HEADER = 16 << 20
MAX_STDIN = 64 << 20
MAX_OUTPUT = 64 << 20
"""Bytes of stdout and of stderr; squeue of 100000 jobs is 25 MB."""
MAX_TIMEOUT_SECONDS = 600
MAX_COMMANDS = 16
"""Commands that run at once; more requests wait, they are not refused."""

POLLRDHUP = 0x2000  # Linux; the select module names it only where it was built with it

READ_ONLY_VERBS = {
    "scontrol": ("show", "ping", "version"),
    "sacctmgr": ("show", "list"),
}
REFUSED_OPTIONS = {"sdiag": ("-r", "--reset")}
COMMANDS = ("sbatch", "squeue", "sinfo", "scancel", "sacct", "sdiag", "scontrol", "sacctmgr")

# sbatch hands its whole environment on to the job, and reads SBATCH_* as options that win over the script's
# own.  So it gets only these.  The functions and paths of environment modules are for "module load" in a job.
ENVIRONMENT = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_CONF", "LD_LIBRARY_PATH", "SHELL",
    "BASH_FUNC_module%%", "BASH_FUNC_ml%%", "BASH_FUNC__module_raw%%", "MODULEPATH", "MODULESHOME",
    "MODULES_CMD", "LMOD_CMD", "LMOD_DIR", "LMOD_PKG", "LMOD_ROOT", "LMOD_SETTARG_FULL_SUPPORT",
)  # fmt: skip


# What ssh needs besides, to lead a tunnel to a compute node.
SSH_ENVIRONMENT = ("SSH_AUTH_SOCK", "KRB5CCNAME")


class Refused(Exception):
    """The request is not understood; the text says why."""


def environment(keep: "Iterable[str]" = (), source: "Mapping[str, str] | None" = None) -> "dict[str, str]":
    """Return what every command gets: a complete, minimal environment, and what `keep` (globs) names."""
    source = os.environ if source is None else source
    made = {name: source[name] for name in ENVIRONMENT if name in source}
    for pattern in keep:
        made.update((name, source[name]) for name in fnmatch.filter(source, pattern))
    account = pwd.getpwuid(os.getuid())
    made.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    made.setdefault("HOME", account.pw_dir)
    made.setdefault("USER", account.pw_name)
    made.setdefault("LOGNAME", account.pw_name)
    made["SLURM_TIME_FORMAT"] = "%s"  # seconds since 1970 in squeue, sinfo, sacct: no local time to guess at
    return made


def check(command: str, arguments: "list[str]") -> None:
    """Raise Refused unless this command may be run with these arguments."""
    if command not in COMMANDS:
        raise Refused(f"the gateway does not run '{command}' (it runs {', '.join(COMMANDS)})")
    if command in READ_ONLY_VERBS:
        verb = next((word for word in arguments if not word.startswith("-")), "")
        if verb not in READ_ONLY_VERBS[command]:
            raise Refused(f"the gateway runs '{command}' only with {', '.join(READ_ONLY_VERBS[command])}")
    for option in REFUSED_OPTIONS.get(command, ()):
        if option in arguments:
            raise Refused(f"the gateway does not run '{command} {option}'")


def receive(connection: socket.socket, size: int) -> bytes:
    """Read exactly that many bytes; fewer only if the peer ended."""
    parts = []
    while size > 0:
        part = connection.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def read_request(connection: socket.socket) -> "tuple[dict[str, Any], bytes] | None":
    """Return the request's header and its payload, or None if the peer went away without asking anything."""
    head = receive(connection, 4)
    if len(head) < 4:  # noqa: PLR2004 - of the length itself
        return None
    (size,) = struct.unpack(">I", head)
    if size > MAX_HEADER:
        raise Refused("the request's header is too long")
    try:
        request = json.loads(receive(connection, size).decode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Refused(f"the request is not JSON: {error}") from error
    if not isinstance(request, dict) or request.get("version") != VERSION:
        raise Refused(f"the gateway speaks version {VERSION}, not the client's: start it from the same hpk.sif")
    if int(request.get("stdin") or 0) > MAX_STDIN:
        raise Refused("the standard input is too long")
    return request, receive(connection, int(request.get("stdin") or 0))


def answer(connection: socket.socket, result: "Result") -> None:
    """Send the answer; a peer that has gone is nobody's problem."""
    code, stdout, stderr, end = result
    header = {"version": VERSION, "code": code, "stdout": len(stdout), "stderr": len(stderr), "end": end}
    text = json.dumps(header).encode()
    with contextlib.suppress(OSError):
        connection.sendall(b"".join((struct.pack(">I", len(text)), text, stdout, stderr)))


def run(
    argv: "list[Any]",
    *,
    program: "str | None" = None,
    stdin: bytes = b"",
    directory: "str | None" = None,
    timeout_seconds: float = 30,
    env: "dict[str, str] | None" = None,
    connection: "socket.socket | None" = None,
) -> "Result":
    """Run a command in a process group of its own; return (code, stdout, stderr, end).

    The group is killed when time is up, when there is too much output, or when the connection's peer leaves.
    """
    # Descriptors are close-on-exec (PEP 446), so closing them one by one in the child would only cost time.
    child = subprocess.Popen(
        argv,
        executable=program,  # found once; argv[0] stays the plain name, with which messages begin
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
    """Feeds a child its input and collects its output, by one poll."""

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
        """Talk until the child has ended, and return ``exited``; or what happened instead."""
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


class Gateway:
    """The server; a thread for each connection."""

    def __init__(self, path: str, keep: "Iterable[str]" = ()) -> None:
        self.path = path
        self.program = os.path.abspath(sys.argv[0])
        self.environment = environment(keep)
        self.slots = threading.BoundedSemaphore(MAX_COMMANDS)
        self.tunnels = []  # type: list[subprocess.Popen[bytes]]

    def listen(self) -> None:
        """Make the directory and the socket, for this user only.

        The socket appears under its name only when it accepts: whoever waits for the file may connect at once.
        """
        directory = os.path.dirname(self.path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.stat(directory)
        if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise SystemExit(f"hpk gateway: {directory} must belong to this user alone (mode 0700)")
        temporary = self.path + ".new"
        for leftover in (temporary, self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(leftover)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(temporary)
        os.chmod(temporary, 0o600)
        self.listener.listen(128)
        os.rename(temporary, self.path)

    def serve(self, until: int) -> None:
        """Answer until the stream `until` (a descriptor) ends."""
        poller = select.poll()
        poller.register(self.listener.fileno(), select.POLLIN)
        poller.register(until, select.POLLIN)
        while True:
            for descriptor, _ in poller.poll():
                if descriptor == until:
                    if not os.read(until, 4096):
                        return
                    continue
                connection, _ = self.listener.accept()
                threading.Thread(target=self.handle, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Remove the socket."""
        self.listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def handle(self, connection: socket.socket) -> None:
        """Answer one request; nothing that it holds ends the gateway."""
        with connection:
            try:
                size = struct.calcsize("3i")
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
                if struct.unpack("3i", peer)[1] != os.getuid():
                    return
                got = read_request(connection)
                if got is not None:
                    answer(connection, self.obey(connection, *got))
            except Refused as error:
                answer(connection, (1, b"", str(error).encode(), "refused"))
            except Exception as error:  # noqa: BLE001 - the peer learns of it, and others must be served
                answer(connection, (1, b"", f"{type(error).__name__}: {error}".encode(), "failed"))

    def obey(self, connection: socket.socket, request: "dict[str, Any]", stdin: bytes) -> "Result":
        """Do what the request asks for; return the answer's parts."""
        command = str(request.get("command"))
        if command == "site":
            return 0, json.dumps(site(request.get("arguments") or [], self.environment)).encode(), b"", "exited"
        # JSON cannot hold bytes: what is not UTF-8 comes as surrogates, and goes to the command as it was.
        arguments = [str(word) for word in request.get("arguments") or []]
        if command == "tunnel":
            return 0, self.tunnel(*arguments), b"", "exited"
        if command == "tunnels":
            return 0, json.dumps([child.poll() for child in self.tunnels]).encode(), b"", "exited"
        check(command, arguments)
        words = [word.encode("utf-8", "surrogateescape") for word in arguments]
        timeout = min(float(request.get("timeout_seconds") or 30), MAX_TIMEOUT_SECONDS)
        program = shutil.which(command, path=self.environment["PATH"])
        if program is None:
            raise Refused(f"there is no '{command}' on PATH on {socket.gethostname()}")
        with self.slots:
            return run(
                [command.encode(), *words],
                program=program, stdin=stdin, directory=request.get("directory"),
                timeout_seconds=timeout, env=self.environment, connection=connection,
            )  # fmt: skip

    def tunnel(self, *options: str) -> bytes:
        """Start a tunnel that outlives the request, and return what it says of itself."""
        is_held = "--hold" in options
        child = subprocess.Popen(
            [sys.executable, "-IS", self.program, "tunnel", *options],
            stdin=subprocess.PIPE if is_held else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_held else subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env=dict(self.environment, **{name: os.environ[name] for name in SSH_ENVIRONMENT if name in os.environ}),
        )
        self.tunnels.append(child)  # the other end of its standard input lives as long as this list
        assert child.stdout is not None
        with child.stdout:
            return child.stdout.readline()


# What the host has: the facts that choose a network mode, and that `hpk doctor` explains.


def site(apptainers: "list[str]", env: "dict[str, str]") -> "dict[str, Any]":
    """Describe this host; `apptainers` holds the command to look for (default: apptainer)."""
    account = pwd.getpwuid(os.getuid())
    return {
        "hostname": socket.gethostname(),
        "addresses": addresses(),
        "user": account.pw_name,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "architecture": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "slurm_version": _first_line(["sinfo", "--version"], env).rpartition(" ")[2],
        "apptainer": apptainer(apptainers[0] if apptainers else "apptainer", env),
        "subuid": subordinate("/etc/subuid", account),
        "subgid": subordinate("/etc/subgid", account),
        "flannel": _settings("/run/flannel/subnet.env"),
        "user_namespaces": _number("/proc/sys/user/max_user_namespaces"),
        "fuse": os.access("/dev/fuse", os.R_OK | os.W_OK),
        "tun": os.access("/dev/net/tun", os.R_OK | os.W_OK),
        "kubectl": shutil.which("kubectl", path=env["PATH"]),
    }


def apptainer(name: str, env: "dict[str, str]") -> "dict[str, Any] | None":
    """Return path, version, whether its setuid starter may be used, and the CNI networks it offers; or None."""
    path = shutil.which(name, path=env["PATH"])
    if path is None:
        return None
    build = {}
    for line in _output([path, "buildcfg"], env).splitlines():
        key, _, value = line.partition("=")
        build[key.strip()] = value.strip().strip('"')
    settings = build.get("APPTAINER_CONFDIR") or build.get("SINGULARITY_CONFDIR") or "/etc/apptainer"
    starter = os.path.join(build.get("LIBEXECDIR", "/usr/libexec"), "apptainer/bin/starter-suid")
    return {
        "path": path,
        "version": _first_line([path, "--version"], env).rpartition(" ")[2],
        "setuid": _is_setuid(starter) and _allows_setuid(os.path.join(settings, "apptainer.conf")),
        "networks": cni_networks(os.path.join(settings, "network")),
    }


def _is_setuid(path: str) -> bool:
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_uid == 0 and bool(status.st_mode & stat.S_ISUID)


def _allows_setuid(path: str) -> bool:
    try:
        with open(path) as file:
            lines = [line.split("=", 1) for line in file if "=" in line and not line.lstrip().startswith("#")]
    except OSError:
        return True  # the default
    return all(value.strip() != "no" for key, value in lines if key.strip() == "allow setuid")


def cni_networks(directory: str) -> "dict[str, list[str]]":
    """Return {network name: [plugin types]} of Apptainer's CNI configuration."""
    found = {}  # type: dict[str, list[str]]
    for path in sorted(glob.glob(os.path.join(directory, "*.conflist"))):
        try:
            with open(path) as file:
                network = json.load(file)
            found[network["name"]] = [plugin.get("type", "") for plugin in network.get("plugins", [])]
        except (OSError, ValueError, KeyError, AttributeError):
            continue
    return found


def subordinate(path: str, account: "pwd.struct_passwd") -> "list[int] | None":
    """Return [first, count] of the user's largest range of subordinate ids, or None if the file gives none."""
    best = None  # type: list[int] | None
    try:
        with open(path) as file:
            for line in file:
                owner, _, ids = line.strip().partition(":")
                if owner in (account.pw_name, str(account.pw_uid)):
                    first, count = (int(number) for number in ids.split(":"))
                    if best is None or count > best[1]:
                        best = [first, count]
    except (OSError, ValueError):
        pass
    return best


def addresses() -> "list[list[str]]":
    """Return [[interface, IPv4 address]] of the interfaces that are not loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        buffer = array.array("B", bytes(64 << 10))
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), 0x8912, request))[0]  # SIOCGIFCONF
        raw = buffer.tobytes()
        step = 16 + 3 * struct.calcsize("P")  # struct ifreq
        for start in range(0, size, step):
            name = raw[start : start + 16].split(b"\0", 1)[0].decode()
            address = socket.inet_ntoa(raw[start + 20 : start + 24])
            if not address.startswith("127."):
                found.append([name, address])
    return found


def _output(argv: "list[str]", env: "dict[str, str]") -> str:
    try:
        return run(argv, timeout_seconds=20, env=env)[1].decode("utf-8", "replace")
    except OSError:
        return ""


def _first_line(argv: "list[str]", env: "dict[str, str]") -> str:
    return (_output(argv, env).splitlines() or [""])[0].strip()


def _settings(path: str) -> "dict[str, str] | None":
    try:
        with open(path) as file:
            return dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return None


def _number(path: str) -> "int | None":
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def main(arguments: "list[str]") -> int:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(description="Runs Slurm's commands for HPK's container.")
    parser.add_argument("socket")
    parser.add_argument("--keep", action="append", default=[], metavar="GLOB", help="also hand on these variables")
    options = parser.parse_args(arguments)
    os.umask(0o077)  # Slurm makes the output files of jobs with the umask of whoever submits them
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which every command would inherit
    gateway = Gateway(os.path.abspath(options.socket), options.keep)
    gateway.listen()
    try:
        gateway.serve(until=sys.stdin.fileno())
    finally:
        gateway.close()
    return 0
