"""The probe: finds out what a host offers by trying it, for ``hpk doctor``.

    python3 host.pyz probe REQUEST.json ANSWER.json

The request is a JSON object: ``apptainer``, ``sandbox`` (an argv, in which ``$HPK_SCRATCH`` stands for the scratch
directory), ``shared`` (a directory of the shared file system), ``registries`` (a list of HOST:PORT).
``HPK_PROBE_SCRATCH`` in the environment is the parent of pods' scratch directories. The answer appears whole or not at
all.
"""

import fcntl
import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import time

from hpk.host import survey

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SYNCS = 100
"""The second slowest of these is the 99th percentile."""
MOST_SYNC_SECONDS = 5.0
SANDBOX_SECONDS = 60
CONNECT_SECONDS = 3


def shared(directory: str) -> "dict[str, Any]":
    """Return the 99th percentile of fsync in a directory of the shared file system, and whether flock works."""
    path = os.path.join(directory, "probe-%s-%d" % (socket.gethostname(), os.getpid()))
    times = []  # type: list[float]
    try:
        with open(path, "wb") as file:
            began = time.monotonic()
            while len(times) < SYNCS and time.monotonic() - began < MOST_SYNC_SECONDS:
                start = time.monotonic()
                file.write(b"x" * 2048)
                file.flush()
                os.fsync(file.fileno())
                times.append(time.monotonic() - start)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_flock = True
            except OSError:
                has_flock = False
        os.unlink(path)
    except OSError as error:
        return {"error": "%s: %s" % (directory, error.strerror)}
    return {"fsync_p99_seconds": sorted(times)[-1 if len(times) < SYNCS else -2], "flock": has_flock}


def scratch(directory: str) -> "dict[str, Any]":
    """Return whether a directory can be made under this one, and its free space."""
    try:
        os.makedirs(directory, exist_ok=True)
        made = tempfile.mkdtemp(prefix="hpk-probe.", dir=directory)
    except OSError as error:
        return {"path": directory, "error": error.strerror}
    status = os.statvfs(made)
    os.rmdir(made)
    return {"path": directory, "free_bytes": status.f_bavail * status.f_frsize}


def routes(path: str = "/proc/net/route") -> "list[list[str]]":
    """Return [interface, network/length] of the host's IPv4 routes, without the default route."""
    found = []
    try:
        with open(path) as file:
            rows = [line.split() for line in file][1:]
    except OSError:
        return []
    for row in rows:
        network, mask = (struct.pack("=I", int(row[column], 16)) for column in (1, 7))
        length = bin(struct.unpack("!I", mask)[0]).count("1")  # noqa: FURB161 - bit_count is of 3.10
        if length:
            found.append([row[0], "%s/%d" % (socket.inet_ntoa(network), length)])
    return found


def unreachable(places: "list[str]") -> "dict[str, str]":
    """Return {HOST:PORT: reason} of the places to which there is no connection.

    None is tried if a proxy is set, because they may be behind it.
    """
    found = {}
    for place in () if any(name.lower().endswith("_proxy") for name in os.environ) else places:
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        except socket.timeout:  # TimeoutError only since Python 3.10
            found[place] = "no answer in %d s" % CONNECT_SECONDS
        except (OSError, ValueError) as error:
            found[place] = getattr(error, "strerror", None) or str(error)
    return found


def limits() -> "dict[str, int]":
    """Return the kernel's limits on user namespaces and open files, as far as its files exist."""
    found = {"open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}
    for name in (
        "user/max_user_namespaces",
        "kernel/unprivileged_userns_clone",
        "kernel/apparmor_restrict_unprivileged_userns",
    ):
        limit = survey.number("/proc/sys/" + name)
        if limit is not None:
            found[os.path.basename(name)] = limit
    return found


def sandbox(argv: "list[str]", directory: str) -> "dict[str, Any]":
    """Start a pod's sandbox with a probe in it; return what it printed, or the error."""
    try:
        made = tempfile.mkdtemp(prefix="hpk-probe.", dir=directory)
    except OSError as error:
        return {"error": "%s: %s" % (directory, error.strerror)}
    start = time.monotonic()
    try:
        done = subprocess.run(
            [word.replace("$HPK_SCRATCH", made) for word in argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SANDBOX_SECONDS,
            check=False,
        )
        said = done.stderr.decode("utf-8", "replace").strip()
        if done.returncode:
            return {"error": said.rpartition("\n")[2] or "exit code %d" % done.returncode, "said": said[-2000:]}
        answer = json.loads(done.stdout.decode())  # type: dict[str, Any]
    except subprocess.TimeoutExpired:
        return {"error": "it did not start within %d s" % SANDBOX_SECONDS}
    except (OSError, ValueError) as error:
        return {"error": str(error)}
    finally:
        shutil.rmtree(made, ignore_errors=True)
    answer["seconds"] = time.monotonic() - start
    return answer


def main(arguments: "list[str]") -> int:
    """Probe this host as a job."""
    request_file, answer_file = arguments
    with open(request_file) as file:
        request = json.load(file)
    directory = os.environ["HPK_PROBE_SCRATCH"]
    answer = {
        "site": survey.site([request["apptainer"]], dict(os.environ)),
        "limits": limits(),
        "routes": routes(),
        "unreachable": unreachable(request["registries"]),
        "shared": shared(request["shared"]),
        "scratch": scratch(directory),
        "sandbox": sandbox(request["sandbox"], directory),
        "now": time.time(),
    }
    temporary = answer_file + ".new"
    with open(temporary, "w") as file:
        json.dump(answer, file)
    os.rename(temporary, answer_file)
    return 0
