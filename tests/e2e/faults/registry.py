"""A registry that misbehaves, for the tests; stdlib only, runs on a host of the simulated cluster.

    python3 registry.py PORT UPSTREAM

It hands on what UPSTREAM (host:port, plain HTTP) has, by the first word of the repository's name:

    lies/NAME     blobs differ from their digests
    swaps/NAME    a manifest differs from the digest that it was asked for by
    drips/NAME    blobs come at a byte a second
    late/NAME     blobs come after eight seconds
"""

import http.server
import sys
import time
import urllib.error
import urllib.request
from typing import Any

LATE_SECONDS = 8


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from upstream, in a bad way."""

    upstream = ""

    def do_HEAD(self) -> None:
        """As GET, without a body."""
        self._answer(has_body=False)

    def do_GET(self) -> None:
        """Hand on, and break."""
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        _, _, how, rest = (self.path + "///").split("/", 3)
        path = f"/v2/{rest.rstrip('/')}"
        headers = {"Accept": self.headers.get("Accept", "*/*")}
        request = urllib.request.Request(f"http://{self.upstream}{path}", headers=headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
                body, kind = answer.read(), answer.headers.get("Content-Type", "")
                digest = answer.headers.get("Docker-Content-Digest", "")
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        if (how == "lies" and "/blobs/" in path) or (how == "swaps" and "/manifests/sha256:" in path):
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if has_body:
            self._send(body, how if "/blobs/" in path else "")

    def _send(self, body: bytes, how: str) -> None:
        if how == "late":
            time.sleep(LATE_SECONDS)
        while how == "drips" and body:
            self.wfile.write(body[:1])
            self.wfile.flush()
            body = body[1:]
            time.sleep(1)
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


if __name__ == "__main__":
    Handler.upstream = sys.argv[2]
    http.server.ThreadingHTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
