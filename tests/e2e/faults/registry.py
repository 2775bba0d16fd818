"""A registry that misbehaves, for the tests; stdlib only, runs on a host of the simulated cluster.

    python3 registry.py PORT UPSTREAM

It hands on what UPSTREAM (host:port, plain HTTP) has, with one more layer, so that nobody has it already; by the
first word of the repository's name:

    lies/NAME     blobs differ from their digests
    swaps/NAME    a manifest differs from the digest that it was asked for by
    drips/NAME    blobs come at a byte a second
    late/NAME     blobs come after eight seconds
"""

import gzip
import hashlib
import http.server
import io
import json
import secrets
import sys
import tarfile
import time
import urllib.error
import urllib.request
from typing import Any, ClassVar

LATE_SECONDS = 8


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers from upstream, in a bad way."""

    upstream = ""
    made: ClassVar[dict[str, tuple[str, bytes]]] = {}
    """By digest or path: media type and body of what is ours."""

    def do_HEAD(self) -> None:
        """As GET, without a body."""
        self._answer(has_body=False)

    def do_GET(self) -> None:
        """Hand on, and break."""
        self._answer(has_body=True)

    def _answer(self, *, has_body: bool) -> None:
        _, _, how, rest = (self.path + "///").split("/", 3)
        name, _, what = rest.rstrip("/").rpartition("/")
        try:
            kind, body = self._find(name, what, key=self.path)
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
            return
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        is_blob = name.endswith("/blobs")
        if (how == "lies" and is_blob) or (how == "swaps" and not is_blob and what.startswith("sha256:")):
            body = body[:-1] + bytes([body[-1] ^ 1])
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if has_body:
            self._send(body, how if is_blob else "")

    def _find(self, name: str, what: str, *, key: str) -> tuple[str, bytes]:
        """What is ours, else upstream's; a manifest that is asked for by its tag gets another layer."""
        if what in self.made or key in self.made:
            return self.made.get(what) or self.made[key]
        headers = {"Accept": self.headers.get("Accept", "*/*")}
        request = urllib.request.Request(f"http://{self.upstream}/v2/{name}/{what}", headers=headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
            kind, body = answer.headers.get("Content-Type", ""), answer.read()
        if name.endswith("/manifests"):
            body = self._with_a_layer(json.loads(body))
            self.made[key] = self.made[f"sha256:{hashlib.sha256(body).hexdigest()}"] = (kind, body)
        return kind, body

    def _with_a_layer(self, manifest: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            archive.addfile(tarfile.TarInfo(f"made-{secrets.token_hex(8)}"))
        blob = gzip.compress(out.getvalue())
        digest = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        self.made[digest] = ("application/octet-stream", blob)
        manifest["layers"].append({**manifest["layers"][0], "digest": digest, "size": len(blob)})
        return json.dumps(manifest).encode()

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
