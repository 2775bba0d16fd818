"""What the Python client makes of sessions into a pod: run in the site's network, it prints its findings as JSON.

python3 streams_client.py WHAT NAMESPACE <kubeconfig
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import websocket
import yaml
from kubernetes import client, config, stream

NAMESPACE = sys.argv[2]
POD = "p"
SESSIONS = 200


def api() -> client.CoreV1Api:
    """A client of its own: ``stream`` changes the one that it is given."""
    return client.CoreV1Api(config.new_client_from_config(config_file=FILE))


def exec_(command: list[str], *, container: str = "c", **options: Any) -> Any:
    """Exec, as the client's users write it."""
    given = {"stdin": False, "stdout": True, "stderr": True, "tty": False, **options}
    call = api().connect_get_namespaced_pod_exec
    return stream.stream(call, POD, NAMESPACE, command=command, container=container, **given)


def plain() -> Any:
    """Everything that is printed, and the exit code."""
    session = exec_(["sh", "-c", "echo out; echo err >&2; exit 7"], _preload_content=False)
    session.run_forever(timeout=30)
    return {
        "stdout": session.read_stdout(),
        "stderr": session.read_stderr(),
        "code": session.returncode,
        "all": exec_(["echo", "a  b", "$HOME"]),
    }


def interactive() -> Any:
    """A conversation, and with version 5 its end."""
    session = exec_(["sh", "-c", "cat; echo end"], stdin=True, _preload_content=False)
    session.write_stdin("first\n")
    first = session.readline_stdout(timeout=20)
    session.write_stdin(b"second\n")
    second = session.readline_stdout(timeout=20)
    session.close_channel(0)
    session.run_forever(timeout=20)
    return {"lines": [first, second, session.read_stdout()], "code": session.returncode}


def terminal() -> Any:
    """A terminal whose size changes."""
    session = exec_(["sh"], stdin=True, stderr=False, tty=True, _preload_content=False)
    found = []
    for rows, columns in ((30, 100), (40, 120)):
        session.write_channel(4, json.dumps({"Width": columns, "Height": rows}))
        seen = ""
        while f"{rows} {columns}" not in seen and session.is_open():
            session.write_stdin("stty size\n")
            seen = session.read_stdout(timeout=1) or ""
        found.append(f"{rows} {columns}")
    session.write_stdin("exit 3\n")
    session.run_forever(timeout=20)
    return {"sizes": found, "code": session.returncode}


def large() -> Any:
    """Far more in one message than anybody holds in memory."""
    data = b"0123456789abcdef" * (2 << 20)
    session = exec_(["sh", "-c", "head -c 33554432 | md5sum"], stdin=True, binary=True, _preload_content=False)
    session.write_stdin(data)
    session.run_forever(timeout=60)
    return {"sum": session.read_stdout().decode().split()[0], "code": session.returncode}


def forward() -> Any:
    """An HTTP request over a forwarded port, and one to a port where nobody listens."""
    ports = stream.portforward(api().connect_get_namespaced_pod_portforward, POD, NAMESPACE, ports="18220,18221")
    socket = ports.socket(18220)
    socket.setblocking(True)
    socket.settimeout(20)
    socket.sendall(b"GET /echo?msg=hello HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
    answer = b""
    while not answer.endswith(b"hello"):
        part = socket.recv(4096)
        if not part:
            break
        answer += part
    refused = ports.socket(18221)
    refused.setblocking(True)
    refused.settimeout(20)
    return {"answer": answer.decode()[-5:], "nothing": refused.recv(10) == b"", "error": ports.error(18221) or ""}


def protocols() -> Any:
    """The oldest subprotocols, byte by byte."""
    found = {}
    kube = yaml.safe_load(Path(FILE).read_text())
    server = kube["clusters"][0]["cluster"]["server"].replace("https://", "wss://")
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    query = urlencode({"command": command, "container": "c", "stdout": "true", "stderr": "true"}, doseq=True)
    url = f"{server}/api/v1/namespaces/{NAMESPACE}/pods/{POD}/exec?{query}"
    tls = {"cert_reqs": ssl.CERT_NONE, "certfile": FILES["client-certificate"], "keyfile": FILES["client-key"]}
    for protocol in ("", "channel.k8s.io", "base64.channel.k8s.io", "v4.channel.k8s.io", "v4.base64.channel.k8s.io"):
        socket = websocket.create_connection(url, subprotocols=[protocol] if protocol else None, sslopt=tls, timeout=30)
        channels: dict[int, bytes] = {}
        while True:
            opcode, data = socket.recv_data()
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                break
            body = base64.b64decode(data[1:]) if "base64" in protocol else data[1:]
            number = data[0] - 48 if "base64" in protocol else data[0]
            channels[number] = channels.get(number, b"") + body
        found[protocol] = {number: value.decode() for number, value in channels.items()}
    return found


def many() -> Any:
    """So many at once, each with its own words; all are open before the first ends."""

    def begin(_: int) -> Any:
        return exec_(["cat"], stdin=True, stderr=False, _preload_content=False)

    def end(pair: tuple[int, Any]) -> str:
        index, session = pair
        session.write_stdin(f"{index}\n")
        line: str = session.readline_stdout(timeout=60)
        session.close_channel(0)
        session.run_forever(timeout=60)
        return f"{line} {session.returncode}"

    api()  # the client tells its threads of a CA's temporary file before it is written (_create_temp_file_with_content)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        sessions = list(pool.map(begin, range(SESSIONS)))
        return list(pool.map(end, enumerate(sessions)))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        FILE = f"{directory}/config"
        Path(FILE).write_bytes(sys.stdin.buffer.read())
        user = yaml.safe_load(Path(FILE).read_text())["users"][0]["user"]
        FILES = {}
        for name in ("client-certificate", "client-key"):
            FILES[name] = f"{directory}/{name}"
            Path(FILES[name]).write_bytes(base64.b64decode(user[f"{name}-data"]))
        found = {name: globals()[name]() for name in sys.argv[1].split(",")}
        print(json.dumps(found))  # noqa: T201 - its result
