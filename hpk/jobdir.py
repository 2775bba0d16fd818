"""Every path under ``~/.hpk``, and how the files there are written: the one place that knows.

Only the standard library's cheap part is imported: the agent reads this before the first container starts.
All directories are 0700 and all files 0600; a write is whole or not at all (rename within the directory).
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
"""Of the files' shapes (:mod:`hpk.records`)."""

POD_IP = "\0podIP\0"
"""Stands for the pod's address in a plan; NUL cannot occur in an argument or an environment variable."""
HOST_IP = "\0hostIP\0"
"""Stands for the compute node's address in a plan."""
NODE_HOSTS = "\0nodeHosts\0"
"""Stands for the compute node's own /etc/hosts in a plan."""

# Signals to a job's script that only HPK sends: real-time ones, which no user's habit and no tool of a site uses.
WARNING_SIGNAL = 50
"""The job nears its time limit (sbatch(1), --signal)."""
END_SIGNAL = 51
"""The pod is to end: the kubelet cannot reach the agent by the link."""

# Where the sandbox finds what the job script binds into it (hpk.sif has these directories).
SANDBOX_POD = "/run/hpk/pod"
SANDBOX_IMAGES = "/run/hpk/images"
SANDBOX_ENDPOINT = "/run/hpk/endpoint"
SANDBOX_SCRATCH = "/run/hpk/scratch"
SANDBOX_HOST = "/run/hpk/host"


_NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF)
"""What file systems say that cannot sync a directory."""


class State:
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
        """The directory of the pod with this UID; nothing is created."""
        return PodDirectory(os.path.join(self.pods, uid))


class PodDirectory:
    """``pods/<uid>``: what must outlive the compute node, for as long as the pod exists."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.plan = os.path.join(root, "spec.json")
        self.script = os.path.join(root, "script.sh")
        self.submission = os.path.join(root, "job.json")
        self.claim = os.path.join(root, "claim")
        self.wish = os.path.join(root, "end.json")
        self.report = os.path.join(root, "report.json")
        self.output = os.path.join(root, "job.out")
        self.logs = os.path.join(root, "logs")

    def log(self, container: str, restart_count: int) -> str:
        """The CRI log file of one run of a container: the first part, see :func:`log_parts`."""
        return os.path.join(self.logs, container, f"{restart_count}.log")


def log_part(path: str, number: int) -> str:
    """The path of one part of a log; part 0 has the log's own."""
    return f"{path}.{number}" if number else path


def log_parts(path: str) -> list[int]:
    """The parts of a log that are there, oldest first; empty if there is none, or its directory is gone.

    A log that is full goes on in the next part, and the oldest is removed.  No file is ever renamed, so that a reader
    on another host, whose file system tells it late, can take none for another.
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
    """Make the directory and its parents, each 0700; fine if it exists."""
    try:
        _make_one(path)
    except FileNotFoundError:
        parent = os.path.dirname(path)
        if parent in ("", path):
            raise
        # Not os.makedirs: it gives its mode to the last directory only.
        make_directory(parent)
        _make_one(path)  # where nothing can be made, as in /proc or below an automounter, it is still "not found"


def _make_one(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def write_bytes(path: str, data: bytes, mode: int = 0o600, *, is_durable: bool = True) -> None:
    """Replace the file with data, whole or not at all.

    Args:
        path: Of the file; its directory must exist.
        data: The new content.
        mode: Of a new file.
        is_durable: Whether the content must survive a power cut from now on.  Else a power cut may leave the file
            empty: enough for what is written again at each start, or for a disk that goes with the node.

    Raises:
        OSError: The file system refused; the old content is untouched.
    """
    # Others may write the same, also in PID namespaces of their own, whose few numbers are the same.
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
    """Have the names in a directory survive a power cut, as far as its file system knows how to do that.

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
    import json  # noqa: PLC0415 - it brings re and enum, 9 ms that the agent has no time for

    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    write_bytes(path, data, is_durable=is_durable)


def read_json(path: str) -> Any:
    """Return the record in the file, a dict, or None if there is none that can be read.

    An empty or torn file, as a power cut may leave it, is no record: whoever wrote it did not come to an end.

    Raises:
        OSError: The file system does not say.
    """
    import json  # noqa: PLC0415 - as above

    try:
        with open(path, "rb") as file:
            # As they are written: values of the environment are bytes.
            value = json.loads(file.read().decode("utf-8", "surrogateescape"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def peek_json(path: str) -> Any:
    """Return the record in the file as :func:`read_json`, or None also where the file system does not say."""
    try:
        return read_json(path)
    except OSError:
        return None
