"""What another user of a host can try; runs there as that user, by any Python 3, standard library only.

Standard input is a JSON object: ``tcp`` and ``udp`` [[address, port]], ``unix`` [name] (``@`` for abstract ones),
``paths`` [path], ``pids`` [id], and files ``certificate``, ``key`` and ``token`` of another cluster.  Standard output
is a JSON list: a line for each thing that was to be had.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import socket
import ssl
import stat
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 3.0
PATHS = ("/", "/version", "/healthz", "/metrics", "/pods", "/debug/pprof/", "/api/v1/secrets", "/v3/kv/range")
PROCESS_FILES = (
    *("environ", "maps", "smaps", "smaps_rollup", "numa_maps", "mem", "auxv", "io", "pagemap", "syscall", "stack"),
    *("personality", "clear_refs", "timers", "mountstats"),
)
PROCESS_DIRECTORIES = ("fd", "fdinfo", "map_files", "root", "cwd")
PROCESS_LINKS = ("exe", "root", "cwd", "ns/mnt", "ns/net", "ns/user", "ns/pid")
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
PTRACE_ATTACH = 16


def main() -> None:
    """Try everything and say what was to be had."""
    wanted = json.load(sys.stdin)
    got: list[str] = []
    for address, port in wanted.get("tcp", ()):
        got += tcp(address, port, wanted)
    for address, port in wanted.get("udp", ()):
        got += udp(address, port)
    for name in wanted.get("unix", ()):
        got += unix(name)
    for path in wanted.get("paths", ()):
        got += file(path)
    for pid in wanted.get("pids", ()):
        got += process(pid)
    json.dump(got, sys.stdout)


def tcp(address: str, port: int, wanted: dict[str, Any]) -> Iterator[str]:
    """Speak plain HTTP, HTTPS as three kinds of stranger, and HTTP/2 as gRPC does."""
    where = f"{address}:{port}"
    try:
        socket.create_connection((address, port), SECONDS).close()
    except OSError:
        return
    plain = ask(address, port, None, "/", "")
    if plain not in (None, 400):
        yield f"{where} answers plain HTTP with {plain}"
    is_strict = False
    for kind, has_certificate, token in (
        ("nobody", False, ""),
        ("another cluster's certificate", True, ""),
        ("another cluster's token", False, wanted["token"]),
    ):
        for path in PATHS:
            status = ask(address, port, context(wanted if has_certificate else None), path, token)
            is_strict = is_strict or status == 401
            if status not in (None, 401, 403):
                yield f"{where} answers {kind} at {path} with {status}"
    for kind, one in (("nobody", None), ("another cluster's certificate", wanted)):
        # A server that knows its clients by HTTP greets everybody in HTTP/2, and has just refused them.
        if not is_strict and greets(address, port, context(one)):
            yield f"{where} speaks HTTP/2 with {kind}"


def context(wanted: dict[str, Any] | None) -> ssl.SSLContext:
    """TLS that believes any server, with a client certificate or none."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if wanted:
        made.load_cert_chain(wanted["certificate"], wanted["key"])
    return made


def ask(address: str, port: int, tls: ssl.SSLContext | None, path: str, token: str) -> int | None:
    """The status of a GET; None if there is none to be had."""
    request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    request += f"Authorization: Bearer {token}\r\n" if token else ""
    answer = talk(address, port, tls, request.encode() + b"\r\n")
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1") else None


def greets(address: str, port: int, tls: ssl.SSLContext) -> bool:
    """Whether an HTTP/2 server sends its settings: whether the handshake was enough for it."""
    tls.set_alpn_protocols(["h2"])
    answer = talk(address, port, tls, HTTP2_HELLO)
    return len(answer) > 3 and answer[3] == 4  # a SETTINGS frame


def talk(address: str, port: int, tls: ssl.SSLContext | None, request: bytes) -> bytes:
    """What a server says first."""
    try:
        with contextlib.ExitStack() as stack:
            line = stack.enter_context(socket.create_connection((address, port), SECONDS))
            line = stack.enter_context(tls.wrap_socket(line)) if tls else line
            line.sendall(request)
            return line.recv(4096)
    except OSError:
        return b""


def udp(address: str, port: int) -> Iterator[str]:
    """Send something and wait a moment for an answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(0.3)
        try:
            line.connect((address, port))
            line.send(b"hello")
            answer = line.recv(4096)
        except OSError:
            return
    yield f"{address}:{port}/udp answers {answer!r}"


def unix(name: str) -> Iterator[str]:
    """Connect, in each way that a socket may want."""
    where = "\0" + name[1:] if name.startswith("@") else name
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        with socket.socket(socket.AF_UNIX, kind) as line:
            line.settimeout(SECONDS)
            try:
                line.connect(where)
            except OSError:
                continue
            yield f"socket {name} lets us connect"


def file(path: str) -> Iterator[str]:
    """Read and write, list and fill; nothing is changed that can be opened."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    for use, flags in (("read", os.O_RDONLY), ("write", os.O_WRONLY)):
        is_directory = stat.S_ISDIR(mode)
        if is_directory and use == "write":
            possible = os.access(path, os.W_OK)
        else:
            possible = opens(path, flags | (os.O_DIRECTORY if is_directory else 0))
        if possible and not stat.S_ISLNK(mode):
            yield f"{path} can be {use} ({stat.filemode(mode)})"


def opens(path: str, flags: int) -> bool:
    """Whether a file can be opened; nothing is waited for."""
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW))
    except OSError:
        return False
    return True


def process(pid: int) -> Iterator[str]:
    """Look into a process, and lay hands on it."""
    here = f"/proc/{pid}"
    for name in PROCESS_FILES:
        with contextlib.suppress(OSError), pathlib.Path(here, name).open("rb") as opened:
            if opened.read(64):
                yield f"{here}/{name} can be read"
    for name in PROCESS_DIRECTORIES:
        with contextlib.suppress(OSError):
            yield f"{here}/{name} holds {[str(one) for one in pathlib.Path(here, name).iterdir()]}"
    for name in PROCESS_LINKS:
        with contextlib.suppress(OSError):
            yield f"{here}/{name} leads to {pathlib.Path(here, name).readlink()}"
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        yield f"{pid} can be signalled"
    if ctypes.CDLL(None).ptrace(PTRACE_ATTACH, pid, 0, 0) == 0:
        yield f"{pid} can be traced"


if __name__ == "__main__":
    main()
