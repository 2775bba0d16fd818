"""Print what Kubernetes' test processes post on how far they are: the port on the first line, then a message a line.

A program of its own, standard library only: it runs on a host of the simulated cluster, beside those processes.
"""

import http.server
import sys


class Handler(http.server.BaseHTTPRequestHandler):
    """Takes a POST of one JSON document."""

    def do_POST(self) -> None:
        """Print the body on one line."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        sys.stdout.write(" ".join(body.decode(errors="replace").split("\n")) + "\n")
        sys.stdout.flush()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of each request."""


if __name__ == "__main__":
    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
