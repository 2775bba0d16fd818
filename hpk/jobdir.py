"""All paths under ``~/.hpk``, and the functions that write files there.

It imports only cheap parts of the standard library: the agent loads it before the first container starts.
All directories are 0700 and all files 0600; a write is complete or not at all (rename within the directory).
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
"""Version of the files' shapes (:mod:`hpk.records`)."""

# Placeholders in a plan. NUL cannot occur in an argument or an environment variable.
POD_IP = "\0podIP\0"
HOST_IP = "\0hostIP\0"
NODE_HOSTS = "\0nodeHosts\0"  # the compute node's own /etc/hosts

# Signals to a job's script that only HPK sends: real-time ones, which neither users nor a site's tools send.
WARNING_SIGNAL = 50
"""The job nears its time limit (sbatch(1), --signal)."""
END_SIGNAL = 51
"""The pod must end: the kubelet cannot reach the agent by the link."""

# Targets of the job script's bind mounts (hpk.sif has these directories).
SANDBOX_POD = "/run/hpk/pod"
SANDBOX_IMAGES = "/run/hpk/images"
SANDBOX_ENDPOINT = "/run/hpk/endpoint"
SANDBOX_SCRATCH = "/run/hpk/scratch"
SANDBOX_HOST = "/run/hpk/host"


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""Errors of file systems that cannot sync a directory."""


class StateDirectory:
    """The state directory, ``~/.hpk`` unless ``HPK_STATE`` moves it."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.pods = os.path.join(root, "pods")
        self.images = os.path.join(root, "images")
        self.warm = os.path.join(root, "warm")
        self.control_plane = os.path.join(root, "state")
        self.endpoint_directory = os.path.join(root, "run")
        self.endpoint = os.path.join(self.endpoint_directory, "endpoint.json")
        self.kubeconfig = os.path.join(root, "kubeconfig")

    def pod(self, uid: str) -> PodDirectory:
        """Return the directory of the pod with this UID; nothing is created."""
        return PodDirectory(os.path.join(self.pods, uid))


class PodDirectory:
    """``pods/<uid>``: files that must outlive the compute node, for as long as the pod exists."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.plan = os.path.join(root, "spec.json")
        self.script = os.path.join(root, "script.sh")
        self.submission = os.path.join(root, "job.json")
        self.claim = os.path.join(root, "claim")
        self.end_request = os.path.join(root, "end.json")
        self.report = os.path.join(root, "report.json")
        self.output = os.path.join(root, "job.out")
        self.logs = os.path.join(root, "logs")

    def log(self, container: str, restart_count: int) -> str:
        """Return the CRI log file of one run of a container: its part 0, see :func:`log_parts`."""
        return os.path.join(self.logs, container, f"{restart_count}.log")


def log_part(path: str, number: int) -> str:
    """Return the path of one part of a log; part 0 has the log's own."""
    return f"{path}.{number}" if number else path


def log_parts(path: str) -> list[int]:
    """Return the existing parts of a log, oldest first; empty if there is none or its directory is gone.

    A full log continues in the next part, and the oldest is removed. No file is ever renamed, so that a reader on
    another host, whose file system sees it late, cannot confuse two parts.
    """
    directory, base = os.path.split(path)
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    found = [0] if base in names else []
    start = base + "."
    return sorted(found + [int(name[len(start) :]) for name in names if _is_part(name, start)])


def _is_part(name: str, start: str) -> bool:
    return name.startswith(start) and name[len(start) :].isdecimal()


def make_directory(path: str) -> None:
    """Make the directory and its parents, each 0700; idempotent."""
    try:
        _make_one(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):
            raise
        # os.makedirs gives its mode to the last directory only.
        make_directory(parent)
        _make_one(path)  # still FileNotFoundError where nothing can be made, as in /proc or below an automounter


def _make_one(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def write_bytes(path: str, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Replace the file with data, completely or not at all; its directory must exist.

    If not durable, a power cut may leave the file empty: enough for a file that each start writes again, or for a disk
    that goes with the node.

    Raises:
        OSError: The file system refused; the old content is untouched.
    """
    # Not the process id: other writers may have the same, in their own PID namespaces.
    temporary = f"{path}.{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if is_durable:
            os.fsync(descriptor)
    except OSError:
        os.close(descriptor)
        os.unlink(temporary)
        raise
    os.close(descriptor)
    os.rename(temporary, path)
    if is_durable:
        sync_directory(os.path.dirname(path))


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut, as far as its file system supports it.

    Raises:
        OSError: The directory cannot be opened, or its disk fails.
    """
    descriptor = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def write_json(path: str, value: Any, *, is_durable: bool = True) -> None:
    """Replace the file with the JSON text of value, as :func:`write_bytes` does."""
    import json  # noqa: PLC0415 - it imports re and enum: 9 ms of the agent's start

    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    write_bytes(path, data, is_durable=is_durable)


def read_json(path: str) -> Any:
    """Return the record in the file, a dict, or None if there is none that can be read.

    An empty or torn file, as a power cut may leave it, is no record: its writer did not finish.

    Raises:
        OSError: The file system does not respond.
    """
    import json  # noqa: PLC0415 - as above

    try:
        with open(path, "rb") as file:
            # As in write_json: values of the environment are bytes.
            value = json.loads(file.read().decode("utf-8", "surrogateescape"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def peek_json(path: str) -> Any:
    """Return the record in the file as :func:`read_json`, or None also if the file system does not respond."""
    try:
        return read_json(path)
    except OSError:
        return None
