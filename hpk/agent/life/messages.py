"""A container's termination message, by the kubelet's rules (kuberuntime_container.go)."""

from __future__ import annotations

import os

FALLBACK = "FallbackToLogsOnError"
LONGEST_FILE = 4096
LONGEST_LOG = 2048
MOST_LOG_LINES = 80


def termination_message(file: str, *, policy: str, exit_code: int, log: bytes) -> str:
    """Return the last 4096 bytes of the file; the log's end if it is empty, the run failed, and the policy says so."""
    text = _last_bytes(file, LONGEST_FILE)
    if not text and policy == FALLBACK and exit_code != 0:
        text = log_end(log)
    return text.decode("utf-8", "replace")


def log_end(data: bytes) -> bytes:
    """Return the text of the last lines of a CRI log: at most 80 lines and 2048 bytes."""
    text: list[bytes] = []
    lines = [line + b"\n" for line in data.split(b"\n") if line]
    for line in lines[-MOST_LOG_LINES:]:
        _, _, rest = line.partition(b" ")
        _, _, rest = rest.partition(b" ")
        tag, _, content = rest.partition(b" ")
        text.append(content.removesuffix(b"\n") if tag.startswith(b"P") else content)
    return b"".join(text)[-LONGEST_LOG:]


def _last_bytes(path: str, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - count))
            return file.read(count)
    except OSError:
        return b""
