"""The images that Kubernetes' own tests name, made as upstream's Dockerfiles make them.

The Dockerfiles are those below test/images and build/pause in the k8s.io/kubernetes module, the names and tags those
of its test/utils/image/manifest.go. Where upstream begins with Alpine, Debian's packages and busybox as its authors
release it (Debian's own drops variables whose names are no identifiers) stand in for it.
"""

import dataclasses
import pathlib

from . import images

AGNHOST = ("2.66.1", "2.55")
# Debian packages, with those that they need, of each base that the images are made on.
ROOTS = {
    "alpine": (
        "base-files", "bash", "bind9-dnsutils", "bsdextrautils", "curl", "iperf", "iproute2", "libc-bin", "netbase",
        "netcat-openbsd", "socat", "util-linux",
    ),
    "debian": (
        "base-files", "bash", "bind9-dnsutils", "coreutils", "dash", "diffutils", "findutils", "grep", "hostname",
        "libc-bin", "mawk", "netbase", "sed",
    ),
    "nginx": ("base-files", "nginx", "libc-bin", "netbase"),
}  # fmt: skip
# What a package's installation would have linked; nothing is installed, only unpacked.
LINKS: dict[str, dict[str, str]] = {
    "alpine": {"/usr/bin/nc": "nc.openbsd", "/usr/local/bin/iperf": "/usr/bin/iperf"},
    "debian": {"/usr/bin/awk": "mawk", "/usr/bin/sh": "dash"},
    "nginx": {},
}
LEFT_OUT = ("dev", "proc", "sys", "run", "boot", "var/cache", "var/lib/apt", "var/lib/dpkg", "etc/apt")
ACCOUNTS = {
    "/etc/passwd": images.PASSWD
    + "www-data:x:33:33::/var/www:/bin/false\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n",
    "/etc/group": images.GROUP + "www-data:x:33:\ngroup-defined-in-image:x:50000:user-defined-in-image\n",
}
OS_RELEASE = 'NAME="Debian\'s files in place of Alpine Linux"\nID=debian\n'  # the test of image volumes reads the name
NGINX = """user www-data;
pid /run/nginx.pid;
error_log /dev/stderr notice;
events {}
http {
  include /etc/nginx/mime.types;
  access_log /dev/stdout;
  server { listen 80; location / { root /usr/share/nginx/html; } }
}
"""


@dataclasses.dataclass(frozen=True)
class Parts:
    """What the images are made of: programs, a folder with the packages of each of ROOTS unpacked, upstream's source.

    In `programs` are agnhost, coredns, etcd, nnp and sample-apiserver.
    """

    programs: pathlib.Path
    busybox: pathlib.Path
    pause: pathlib.Path
    roots: pathlib.Path
    source: pathlib.Path


def build(folder: pathlib.Path, parts: Parts) -> None:
    """Write all images into a new layout."""
    layout = images.Layout(folder)
    alpine = _root(parts, "alpine", busybox=True)
    agnhost = _agnhost(parts)
    for tag in AGNHOST:
        layout.add(f"e2e/agnhost:{tag}", _image(alpine, agnhost, Entrypoint=["/agnhost"], Cmd=["pause"]))
    for name in ("kitten", "nautilus"):
        pages = _layer({f"/{page.name}": page for page in sorted((parts.source / name / "html").iterdir())}, mode=0o644)
        served = _image(alpine, agnhost, pages, Entrypoint=["/agnhost"], Cmd=["test-webserver"])
        layout.add(f"e2e/{name}:1.8", served)
    nnp = _layer({"/usr/local/bin/nnp": parts.programs / "nnp"}, mode=0o6755)
    layout.add("e2e/nonewprivs:1.4", _image(alpine, nnp, Cmd=["nnp"]))
    server = _layer({"/sample-apiserver": parts.programs / "sample-apiserver"})
    layout.add("e2e/sample-apiserver:1.29.2", _image(alpine, server, Entrypoint=["/sample-apiserver"]))
    debian = _root(parts, "debian")
    layout.add("e2e/nonroot:1.5", _image(debian, User="1234", Cmd=["bash"]))
    coredns = _layer({"/coredns": parts.programs / "coredns"})
    layout.add("e2e/glibc-dns-testing:2.1.1", _image(debian, coredns, Cmd=["bash"]))
    nginx = _root(parts, "nginx", busybox=True)
    settings = images.Layer()
    settings.file("/etc/nginx/nginx.conf", NGINX)
    for tag in ("1.27.0-2", "1.28.0-2"):
        served = _image(nginx, settings.finished(), Cmd=["nginx", "-g", "daemon off;"], StopSignal="SIGQUIT")
        layout.add(f"e2e/nginx:{tag}", served)
    layout.add("e2e/busybox:1.37.0-2", _image(images.busybox_layer(parts.busybox), Cmd=["sh"]))
    alone = _layer({"/pause": parts.pause})
    layout.add("e2e/pause:3.10.2", _image(alone, User="65535:65535", Entrypoint=["/pause"]))
    etcd = _layer({"/usr/local/bin/etcd": parts.programs / "etcd"})
    layout.add("e2e/etcd:3.7.0-0", _image(etcd, Entrypoint=["/usr/local/bin/etcd"]))
    layout.finish()


def _agnhost(parts: Parts) -> bytes:
    """Return what agnhost's Dockerfile adds; no conformance test needs its /var/registry, a copy from a registry."""
    layer = images.Layer()
    layer.file("/usr/lib/os-release", OS_RELEASE)
    layer.folder("/uploads")
    for name in ("localhost.crt", "localhost.key"):
        layer.file(f"/{name}", (parts.source / "agnhost/porter" / name).read_bytes())
    for name in ("agnhost", "coredns"):
        layer.file(f"/{name}", (parts.programs / name).read_bytes(), mode=0o755)
    layer.link("/agnhost-2", "agnhost")
    return layer.finished()


def _root(parts: Parts, name: str, *, busybox: bool = False) -> bytes:
    """Return a base as one layer; busybox fills in for the commands that it lacks."""
    root = parts.roots / name
    layer = images.Layer()
    for source in sorted(root.rglob("*")):
        path = source.relative_to(root)
        if not any(path.is_relative_to(left) for left in LEFT_OUT):
            layer.copy(root, f"/{path}")
    layer.folder("/run")  # where daemons write their number
    for file, text in ACCOUNTS.items():
        layer.file(file, text)
    for link, target in LINKS[name].items():
        layer.link(link, target)
    if busybox:
        there = {"busybox", *(pathlib.Path(path).name for path in LINKS[name])}
        there |= {file.name for part in ("usr/bin", "usr/sbin") for file in (root / part).iterdir()}
        layer.file("/usr/bin/busybox", parts.busybox.read_bytes(), mode=0o755)
        for applet in images.applets(parts.busybox):
            if applet not in there:
                layer.link(f"/usr/bin/{applet}", "busybox")
    return layer.finished()


def _layer(files: dict[str, pathlib.Path], *, mode: int = 0o755) -> bytes:
    layer = images.Layer()
    layer.folder("/tmp", mode=0o1777)
    for path, source in files.items():
        layer.file(path, source.read_bytes(), mode=mode)
    return layer.finished()


def _image(*layers: bytes, **config: object) -> images.Image:
    return images.Image(layers=layers, config={"Env": [images.PATH], **config})
