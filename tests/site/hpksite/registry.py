"""Push an OCI layout to a registry, over its HTTP API. A program of its own: it runs in a host's network.

python3 registry.py HOST:PORT LAYOUT
"""

import json
import pathlib
import shlex
import sys
import urllib.error
import urllib.request
from typing import Any

Json = dict[str, Any]
REF = "org.opencontainers.image.ref.name"


def named(layout: pathlib.Path) -> list[tuple[str, str, Json]]:
    """Return (repository, tag, descriptor) of every image that the layout names."""
    out = []
    for descriptor in json.loads((layout / "index.json").read_text())["manifests"]:
        repository, _, tag = descriptor["annotations"][REF].rpartition(":")
        out.append((repository, tag, descriptor))
    return out


def check(address: str, layout: pathlib.Path) -> str:
    """Return a shell script that holds when the registry serves exactly the layout's images."""
    tests = []
    for repository, tag, descriptor in named(layout):
        accept = shlex.quote(f"Accept: {descriptor['mediaType']}")
        url = f"http://{address}/v2/{repository}/manifests/{tag}"
        tests.append(f"curl -fsSI -H {accept} {url} | grep -q {descriptor['digest']}")
    return " && ".join(tests)


def push(address: str, layout: pathlib.Path) -> None:
    """Make the registry serve every image of the layout; what it has already is not sent again."""
    for repository, tag, descriptor in named(layout):
        _manifest(f"http://{address}/v2/{repository}", layout, descriptor, reference=tag)


def _manifest(base: str, layout: pathlib.Path, descriptor: Json, *, reference: str) -> None:
    data = _read(layout, descriptor)
    document = json.loads(data)
    for child in document.get("manifests", []):
        _manifest(base, layout, child, reference=child["digest"])
    for blob in [*document.get("layers", []), *([document["config"]] if "config" in document else [])]:
        _blob(base, layout, blob)
    _send("PUT", f"{base}/manifests/{reference}", data, descriptor["mediaType"])


def _blob(base: str, layout: pathlib.Path, descriptor: Json) -> None:
    try:
        _send("HEAD", f"{base}/blobs/{descriptor['digest']}")
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        upload = _send("POST", f"{base}/blobs/uploads/", b"")
        joiner = "&" if "?" in upload else "?"
        _send("PUT", f"{upload}{joiner}digest={descriptor['digest']}", _read(layout, descriptor))


def _send(method: str, url: str, data: bytes | None = None, media: str = "application/octet-stream") -> str:
    """Send a request and return where it says to go on; an HTTPError if it is refused."""
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": media})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the machine's proxy is not for here
    with opener.open(request, timeout=60) as answer:
        return str(answer.headers.get("Location", ""))


def _read(layout: pathlib.Path, descriptor: Json) -> bytes:
    digest: str = descriptor["digest"]
    return (layout / "blobs" / digest.replace(":", "/")).read_bytes()


if __name__ == "__main__":
    push(sys.argv[1], pathlib.Path(sys.argv[2]))
