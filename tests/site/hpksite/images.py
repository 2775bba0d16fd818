"""The images that the cluster's registry serves, made here from Debian's files, without any other registry.

The result is one OCI layout: blobs/sha256/ and an index.json that names each image `NAME:TAG`.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import pathlib
import re
import subprocess
import tarfile
from typing import Any

Json = dict[str, Any]

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker"
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"

# The Debian packages that python:3 is assembled from: an interpreter, a shell, and the tools of a script.
PYTHON_PACKAGES = (
    "base-files", "dash", "coreutils", "python3-minimal", "python3.13-minimal", "libpython3.13-minimal",
    "libpython3.13-stdlib", "libc6", "zlib1g", "libexpat1", "libssl3t64", "libffi8", "libbz2-1.0", "liblzma5",
    "libsqlite3-0", "libuuid1", "libzstd1", "libreadline8t64", "libtinfo6", "libncursesw6", "libselinux1",
    "libpcre2-8-0", "libacl1", "libattr1", "libgmp10", "libcap2", "media-types", "netbase",
)  # fmt: skip
STREAM = "/usr/local/bin/stream"
BENCHMARKS = ("/usr/bin/sysbench", "/usr/bin/fio", "/usr/bin/socat")
LEFT_OUT = ("/usr/share/doc", "/usr/share/man", "/usr/share/lintian", "/usr/share/bug")


class Layer:
    """A tar that always comes out the same: fixed times, entries in the order they are added."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)

    def folder(self, path: str, *, mode: int = 0o755, owner: int = 0) -> None:
        """Add a folder."""
        self._add(path, tarfile.DIRTYPE, mode=mode, owner=owner)

    def file(self, path: str, content: bytes | str, *, mode: int = 0o644, owner: int = 0) -> None:
        """Add a file."""
        data = content.encode() if isinstance(content, str) else content
        self._add(path, tarfile.REGTYPE, mode=mode, owner=owner, data=data)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link."""
        self._add(path, tarfile.SYMTYPE, mode=0o777, target=target)

    def hard_link(self, path: str, target: str) -> None:
        """Add another name of a file that is in this layer."""
        self._add(path, tarfile.LNKTYPE, mode=0o755, target=target)

    def copy(self, root: pathlib.Path, path: str) -> None:
        """Add what is at `path` below `root`, owned by root in the image; nothing if it is a special file."""
        source = root / path.lstrip("/")
        if source.is_symlink():
            self.link(path, str(source.readlink()))
        elif source.is_dir():
            self.folder(path, mode=source.stat().st_mode & 0o7777)
        elif source.is_file():
            self.file(path, source.read_bytes(), mode=source.stat().st_mode & 0o7777)

    def whiteout(self, path: str) -> None:
        """Add the mark that hides `path` of the layers below."""
        parent, _, name = path.rpartition("/")
        self.file(f"{parent}/.wh.{name}", b"")

    def opaque(self, path: str) -> None:
        """Add a folder and the mark that hides all that the layers below have in it."""
        self.folder(path)
        self.file(f"{path}/.wh..wh..opq", b"")

    def finished(self) -> bytes:
        """Return the finished tar."""
        self._tar.close()
        return self._buffer.getvalue()

    def _add(self, path: str, kind: bytes, *, mode: int, owner: int = 0, target: str = "", data: bytes = b"") -> None:
        entry = tarfile.TarInfo(path.lstrip("/"))
        entry.type, entry.mode, entry.linkname, entry.size = kind, mode, target, len(data)
        entry.uid = entry.gid = owner
        self._tar.addfile(entry, io.BytesIO(data))


@dataclasses.dataclass(frozen=True)
class Image:
    """One image: its layers, lowest first, and what the container runs."""

    layers: tuple[bytes, ...]
    config: Json
    architecture: str = "amd64"
    docker_types: bool = False  # Docker's media types instead of OCI's


class Layout:
    """An OCI layout on disk that images are added to."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._named: list[Json] = []
        self._packed: dict[bytes, Json] = {}  # layers that several images share are compressed once
        (folder / "blobs" / "sha256").mkdir(parents=True)

    def add(self, name: str, image: Image) -> Json:
        """Write an image's blobs and name it (`NAME:TAG`); return its descriptor."""
        descriptor = self._image(image)
        self._name(name, descriptor)
        return descriptor

    def add_index(self, name: str, images: list[Image]) -> None:
        """Write an index of the same image for several architectures, as most public images are."""
        manifests = [
            {**self._image(image), "platform": {"os": "linux", "architecture": image.architecture}} for image in images
        ]
        media = f"{OCI}.index.v1+json"
        self._name(name, self._json({"schemaVersion": 2, "mediaType": media, "manifests": manifests}, media))

    def finish(self) -> None:
        """Write index.json; the layout is complete then."""
        index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": self._named}
        (self._folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self._folder / "index.json").write_text(json.dumps(index, indent=1))

    def _name(self, name: str, descriptor: Json) -> None:
        self._named.append({**descriptor, "annotations": {"org.opencontainers.image.ref.name": name}})

    def _image(self, image: Image) -> Json:
        if image.docker_types:
            media = f"{DOCKER}.distribution.manifest.v2+json"
            config_media = f"{DOCKER}.container.image.v1+json"
            layer_media = f"{DOCKER}.image.rootfs.diff.tar.gzip"
        else:
            media, config_media, layer_media = (
                f"{OCI}.manifest.v1+json",
                f"{OCI}.config.v1+json",
                f"{OCI}.layer.v1.tar+gzip",
            )
        config = {
            "architecture": image.architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": image.config,
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in image.layers]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "tests/site"} for _ in image.layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": media,
            "config": self._json(config, config_media),
            "layers": [{**self._layer(layer), "mediaType": layer_media} for layer in image.layers],
        }
        return self._json(manifest, media)

    def _layer(self, layer: bytes) -> Json:
        if layer not in self._packed:
            self._packed[layer] = self._blob(gzip.compress(layer, 6, mtime=0), "")
        return self._packed[layer]

    def _json(self, document: Json, media: str) -> Json:
        return self._blob(json.dumps(document, separators=(",", ":")).encode(), media)

    def _blob(self, data: bytes, media: str) -> Json:
        digest = _digest(data)
        (self._folder / "blobs" / digest.replace(":", "/")).write_bytes(data)
        return {"mediaType": media, "digest": digest, "size": len(data)}


def build(folder: pathlib.Path, *, rootfs: pathlib.Path, agnhost: pathlib.Path, stream: pathlib.Path) -> None:
    """Write all images into a new layout, from the hosts' root file system and what was built."""
    layout = Layout(folder)
    layout.add("busybox:1", busybox(rootfs))
    layout.add("agnhost:2", agnhost_image(agnhost))
    layout.add("alias/busybox:1", agnhost_image(agnhost))
    layout.add("python:3", python(rootfs))
    layout.add("layers:1", layers(rootfs))
    layout.add("bench:1", bench(rootfs, stream=stream))
    layout.add_index("multi:1", [_foreign(), busybox(rootfs)])
    layout.finish()


def build_argo(folder: pathlib.Path, *, controller: pathlib.Path, executor: pathlib.Path, tag: str) -> None:
    """Write Argo's two images into a new layout, as Argo's own Dockerfile has them."""
    layout = Layout(folder)
    layout.add(f"argoproj/workflow-controller:{tag}", _program(controller, user="8737"))
    layout.add(f"argoproj/argoexec:{tag}", _program(executor, user=""))
    layout.finish()


def busybox(rootfs: pathlib.Path) -> Image:
    """Return static busybox with every applet, no entry point, command sh."""
    return Image(layers=(_busybox_layer(rootfs),), config={"Env": [PATH], "Cmd": ["sh"]})


def agnhost_image(program: pathlib.Path) -> Image:
    """Return Kubernetes' agnhost without a shell."""
    layer = Layer()
    _skeleton(layer)
    layer.file("/agnhost", program.read_bytes(), mode=0o755)
    config = {"Env": [PATH], "Entrypoint": ["/agnhost"], "Cmd": ["pause"], "WorkingDir": "/"}
    return Image(layers=(layer.finished(),), config=config)


def python(rootfs: pathlib.Path) -> Image:
    """Return Debian's Python with its standard library, a shell and coreutils."""
    layer = Layer()
    _skeleton(layer)
    info = rootfs / "var/lib/dpkg/info"
    paths: set[str] = set()
    for package in PYTHON_PACKAGES:
        listed = info / f"{package}.list"
        if not listed.exists():
            listed = next(info.glob(f"{package}:*.list"))
        paths.update(listed.read_text().split("\n"))
    for path in sorted(paths):
        if path in ("", "/.", "/etc", "/tmp", "/root") or path.startswith(LEFT_OUT):
            continue
        layer.copy(rootfs, path)
    for path in ("/bin", "/lib", "/lib64", "/sbin"):  # links into /usr, which no package owns
        layer.copy(rootfs, path)
    layer.link("/usr/bin/python", "python3")
    return Image(layers=(layer.finished(),), config={"Env": [PATH, "LANG=C.UTF-8"], "Cmd": ["python3"]})


def bench(rootfs: pathlib.Path, *, stream: pathlib.Path) -> Image:
    """Return busybox and the benchmarks that the hosts have, at the same paths: the very same files."""
    layer = Layer()
    layer.file(STREAM, stream.read_bytes(), mode=0o755)
    for program in BENCHMARKS:
        for path in (program, *_libraries(rootfs, program)):
            layer.file(path, (rootfs / path.lstrip("/")).read_bytes(), mode=0o755)
    return Image(layers=(_busybox_layer(rootfs), layer.finished()), config={"Env": [PATH], "Cmd": ["sh"]})


def _libraries(rootfs: pathlib.Path, program: str) -> list[str]:
    """Return what a program of the root file system is linked with, its loader included."""
    found = [path for pattern in ("lib64/ld-*.so.*", "lib/ld-*.so.*") for path in rootfs.glob(pattern)]
    loader = f"/{found[0].relative_to(rootfs)}"
    argv = ["chroot", str(rootfs), loader, "--list", program]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [loader, *re.findall(r"=> (/\S+)", said)]


def layers(rootfs: pathlib.Path) -> Image:
    """Return the image for tests of whatever converts images; README.md says what must come out."""
    middle = Layer()
    middle.folder("/stuff", owner=1000)
    middle.folder("/stuff/opaque")
    for name in ("removed", "opaque/old", "replaced", "kept"):
        middle.file(f"/stuff/{name}", "lower\n", owner=1000)
    middle.file("/stuff/private", "only uid 1000 reads this\n", mode=0o600, owner=1000)
    middle.hard_link("/stuff/kept-too", "stuff/kept")
    middle.file("/etc/passwd", PASSWD + "worker:x:1000:1000::/stuff:/bin/sh\n")
    middle.file("/etc/group", GROUP + "worker:x:1000:\n")
    upper = Layer()
    upper.folder("/stuff", owner=1000)
    upper.whiteout("/stuff/removed")
    upper.opaque("/stuff/opaque")
    upper.file("/stuff/opaque/new", "new\n")
    upper.file("/stuff/replaced", "upper\n", owner=1000)
    config = {
        "User": "1000:1000",
        "WorkingDir": "/stuff",
        "Env": [
            PATH,
            "PLAIN=1",
            "SPACES=two  words ",
            "QUOTES=\"double\" 'single' $HOME `tick` \\n",
            "EMPTY=",
            "EQUALS=a=b",
        ],
        "Entrypoint": ["/bin/sh", "-c"],
        "Cmd": ['echo "$SPACES|$QUOTES|$(id -u)"'],
        "Labels": {"of": "tests/site"},
    }
    return Image(layers=(_busybox_layer(rootfs), middle.finished(), upper.finished()), config=config, docker_types=True)


def _program(program: pathlib.Path, *, user: str) -> Image:
    """Return an image of one static program in /bin, which is its entry point, without a shell."""
    layer = Layer()
    _skeleton(layer)
    layer.folder("/bin")
    layer.file(f"/bin/{program.name}", program.read_bytes(), mode=0o755)
    config = {"Env": [PATH], "Entrypoint": [program.name], "WorkingDir": "/", **({"User": user} if user else {})}
    return Image(layers=(layer.finished(),), config=config)


def _foreign() -> Image:
    layer = Layer()
    layer.file("/wrong-architecture", "this manifest is not the one to take\n")
    return Image(layers=(layer.finished(),), config={"Cmd": ["/wrong-architecture"]}, architecture="arm64")


def _skeleton(layer: Layer) -> None:
    for path in ("/etc", "/root"):
        layer.folder(path)
    layer.folder("/tmp", mode=0o1777)
    layer.file("/etc/passwd", PASSWD)
    layer.file("/etc/group", GROUP)


def _busybox_layer(rootfs: pathlib.Path) -> bytes:
    return busybox_layer(next(path for path in (rootfs / "usr/bin/busybox", rootfs / "bin/busybox") if path.exists()))


def busybox_layer(program: pathlib.Path) -> bytes:
    """Return a layer of a static busybox and every applet in /bin."""
    layer = Layer()
    _skeleton(layer)
    for path in ("/bin", "/home", "/var", "/usr", "/usr/bin"):
        layer.folder(path)
    layer.folder("/var/tmp", mode=0o1777)
    layer.file("/bin/busybox", program.read_bytes(), mode=0o755)
    for applet in applets(program):
        layer.link(f"/bin/{applet}", "busybox")
    layer.link("/usr/bin/env", "/bin/busybox")
    return layer.finished()


def applets(busybox: pathlib.Path) -> list[str]:
    """Return the commands that a busybox can be called as, but its own name: a link would replace the program."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    return [applet for applet in listed if applet != "busybox"]


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
