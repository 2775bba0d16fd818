"""The images of Kubernetes' tests have upstream's names, and hold what its Dockerfiles put into them."""

import gzip
import io
import json
import pathlib
import tarfile
from typing import Any

from tests.site.hpksite import testimages


def parts(folder: pathlib.Path) -> testimages.Parts:
    """Lay out what the images are made of, with little in it."""

    def file(path: str, text: str = "", mode: int = 0o644) -> pathlib.Path:
        made = folder / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        made.chmod(mode)
        return made

    for name in ("agnhost", "coredns", "etcd", "nnp", "sample-apiserver"):
        file(f"programs/{name}", name)
    for name in testimages.ROOTS:
        for path in ("usr/bin/curl", "usr/sbin/ip", "var/cache/apt/pkgcache.bin", "dev/null"):
            file(f"roots/{name}/{path}", name)
        (folder / "roots" / name / "bin").symlink_to("usr/bin")
    for name in ("localhost.crt", "localhost.key"):
        file(f"source/agnhost/porter/{name}", name)
    for name in ("kitten", "nautilus"):
        file(f"source/{name}/html/data.json", name)
    busybox = file("busybox", "#!/bin/sh\nprintf 'busybox\\ncurl\\nip\\nnc\\nsh\\n'\n", 0o755)
    return testimages.Parts(folder / "programs", busybox, file("pause"), folder / "roots", folder / "source")


def content(layout: pathlib.Path, name: str) -> tuple[dict[str, tarfile.TarInfo], dict[str, Any]]:
    """Return what an image's layers hold together, by path, and its configuration."""

    def blob(descriptor: dict[str, Any]) -> bytes:
        digest: str = descriptor["digest"]
        return (layout / "blobs" / digest.replace(":", "/")).read_bytes()

    index = json.loads((layout / "index.json").read_text())["manifests"]
    named = {entry["annotations"]["org.opencontainers.image.ref.name"]: entry for entry in index}
    manifest = json.loads(blob(named[name]))
    found: dict[str, tarfile.TarInfo] = {}
    for layer in manifest["layers"]:
        with tarfile.open(fileobj=io.BytesIO(gzip.decompress(blob(layer)))) as tar:
            found |= {entry.name: entry for entry in tar}
    return found, json.loads(blob(manifest["config"]))["config"]


def test_images_hold_what_upstreams_dockerfiles_add(tmp_path: pathlib.Path) -> None:
    """Of each what a test relies on; packages come before busybox's commands of the same name."""
    testimages.build(tmp_path / "layout", parts(tmp_path))
    files, config = content(tmp_path / "layout", "e2e/agnhost:2.66.1")
    assert {"agnhost", "localhost.crt", "uploads", "coredns"} <= set(files)
    assert files["agnhost-2"].linkname == "agnhost"
    assert files["usr/bin/sh"].linkname == "busybox"
    assert files["usr/bin/nc"].linkname == "nc.openbsd"
    assert files["usr/bin/curl"].isfile()
    assert files["usr/sbin/ip"].isfile()
    assert "usr/bin/ip" not in files
    assert files["bin"].linkname == "usr/bin"
    assert not [path for path in files if path.startswith(("dev", "var/cache"))]
    assert content(tmp_path / "layout", "e2e/nginx:1.27.0-2")[0]["run"].isdir()
    assert config["Entrypoint"] == ["/agnhost"]
    assert content(tmp_path / "layout", "e2e/nautilus:1.8")[1]["Cmd"] == ["test-webserver"]
    assert "data.json" in content(tmp_path / "layout", "e2e/kitten:1.8")[0]
    assert content(tmp_path / "layout", "e2e/nonewprivs:1.4")[0]["usr/local/bin/nnp"].mode == 0o6755
    assert content(tmp_path / "layout", "e2e/nonroot:1.5")[1]["User"] == "1234"
    assert content(tmp_path / "layout", "e2e/pause:3.10.2")[1]["User"] == "65535:65535"
    assert content(tmp_path / "layout", "e2e/busybox:1.37.0-2")[0]["bin/sh"].linkname == "busybox"
