"""Forwarded connections: run on a host with kubectl, it prints its findings as JSON.

python3 streams_forward.py NAMESPACE
"""

from __future__ import annotations

import concurrent.futures
import hashlib
import json
import os
import re
import socket
import subprocess
import sys

LARGE = 30_000_000


def connect(port: int, data: bytes) -> bytes:
    """Send, say that this was all, and read to the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as made:
        made.sendall(data)
        made.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: made.recv(1 << 16), b""))


def is_right(port: int, count: int) -> bool:
    """Whether the server in the pod got all, and all that it sent came back."""
    data = os.urandom(count)
    return connect(port, data) == hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def main() -> None:
    """Forward a port, use it in every way, then one where nobody listens."""
    command = ["kubectl", "-n", sys.argv[1], "port-forward", "p", ":7000", ":7001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
        assert forward.stdout is not None
        said = ""
        while len(found := re.findall(r"from 127\.0\.0\.1:(\d+)", said)) < 2:
            line = forward.stdout.readline()
            assert line, f"kubectl has ended: {said}"
            said += line
        ports = [int(port) for port in found]
        try:
            with concurrent.futures.ThreadPoolExecutor(40) as pool:
                many = list(pool.map(lambda _: is_right(ports[0], 50_000), range(80)))
            large = is_right(ports[0], LARGE)
            with socket.create_connection(("127.0.0.1", ports[0])) as stuck:
                stuck.sendall(b"half a request")  # and never its end
                beside = is_right(ports[0], 1000)
            refused = connect(ports[1], b"")
        finally:
            forward.terminate()
        words = forward.stdout.read()
    told = {"many": sum(many), "large": large, "beside": beside, "refused": refused.decode(), "words": words}
    print(json.dumps(told))  # noqa: T201 - its result


main()
