"""The probe's client is warm, as a controller's is."""

from __future__ import annotations

import http.client
import http.server
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from tests.bench import probe

if TYPE_CHECKING:
    from collections.abc import Iterator


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers with the request's method and the number of its connection; ends a connection where it is asked to."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[list[Any]] = []

    def setup(self) -> None:
        """Count the connection."""
        super().setup()
        self.connections.append(self)

    def do_GET(self) -> None:
        """Answer."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = f'["{self.command}", {len(self.connections)}]'.encode()
        self.send_response(404 if self.path == "/missing" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = self.path == "/last"

    def do_POST(self) -> None:
        """As GET."""
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[probe.Client]:
    """A client of such a server, without TLS."""

    def plain(host: str, port: int, *, context: object, timeout: float) -> http.client.HTTPConnection:
        assert context is None
        return http.client.HTTPConnection(host, port, timeout=timeout)

    Handler.connections.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(http.client, "HTTPSConnection", plain)
        monkeypatch.setattr(probe, "access", lambda: (f"https://127.0.0.1:{server.server_port}", None))
        made = probe.Client()
        yield made
        made._line.close()
        server.shutdown()


def test_all_requests_have_one_connection(client: probe.Client) -> None:
    """A handshake for each would be measured with the pod, and be work for the API server; errors change nothing."""
    assert client.call("POST", "/a", {"x": 1}) == ["POST", 1]
    with pytest.raises(RuntimeError, match="GET /missing: 404"):
        client.call("GET", "/missing")
    assert client.call("GET", "/b") == ["GET", 1]


def test_a_connection_that_the_server_has_ended_is_made_anew(client: probe.Client) -> None:
    """An API server ends those that are idle."""
    assert client.call("GET", "/last") == ["GET", 1]
    assert client.call("GET", "/b") == ["GET", 2]
