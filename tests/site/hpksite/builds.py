"""The parts that take minutes to build, each cached outside the tree by what it is made of."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator

from . import images, layout, paths, sh, testimages

# What this needs of the machine itself; the Apptainer build looks after its own.
MACHINE_PACKAGES = ("mmdebstrap", "debian-archive-keyring", "iproute2", "procps", "util-linux", "gcc", "libc6-dev")
PROGRAMS = ("etcd", "flanneld", "kubectl", "agnhost")
TEST_PROGRAMS = ("agnhost", "coredns", "etcd", "nnp", "sample-apiserver")
TEST_IMAGE_PACKAGES = ("make", "bzip2")
ARGO = ("workflow-controller", "argoexec")
ARGO_TAG = "v4.0.5"
MMDEBSTRAP = (
    "--mode=root", "--quiet",
    '--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Built:
    """Where the finished parts are."""

    rootfs: pathlib.Path
    apptainer: pathlib.Path
    programs: pathlib.Path
    stream: pathlib.Path
    images: pathlib.Path
    sharedfs: pathlib.Path

    def fingerprint(self) -> str:
        """Return a text that changes when any part does."""
        programs = [(name, _identity(self.programs / name)) for name in PROGRAMS]
        made = [self.rootfs, self.apptainer, self.stream, self.images, self.sharedfs]
        return json.dumps([*map(str, made), programs])


def ensure(suite: str) -> Built:
    """Return all parts of a cluster whose hosts run a Debian suite, building those that are missing."""
    with _alone("hosts") as folder:
        _install_missing()
        rootfs = _rootfs(folder, suite)
        source = _rootfs(folder, layout.IMAGES_SUITE)
        apptainer = pathlib.Path(_apptainer())
        programs = folder / "programs"
        sh.shown(f"{paths.TREE}/controlplane/build.sh", str(programs), *PROGRAMS)
        stream = _stream(folder)
        made = _images(folder, rootfs=source, agnhost=programs / "agnhost", stream=stream)
        return Built(rootfs, apptainer, programs, stream, made, _sharedfs(folder))


def argo() -> pathlib.Path:
    """Return the layout of Argo's images, building it if it is missing."""
    with _alone("argo") as folder:
        programs = folder / "programs"
        sh.shown(f"{paths.TREE}/controlplane/build.sh", str(programs), *ARGO)
        controller, executor = (programs / name for name in ARGO)
        source = pathlib.Path(images.__file__).read_text()

        def make(building: pathlib.Path) -> None:
            sh.say("making Argo's images")
            images.build_argo(building, controller=controller, executor=executor, tag=ARGO_TAG)

        parts = (source, ARGO_TAG, _identity(controller), _identity(executor))
        return _made(folder, "images-argo", *parts, make=make)


def conformance() -> pathlib.Path:
    """Return the layout of the images that Kubernetes' own tests name, making it if it is missing."""
    with _alone("conformance") as folder:
        _install_missing(*TEST_IMAGE_PACKAGES)
        programs = folder / "programs"
        sh.shown(f"{paths.TREE}/controlplane/build.sh", str(programs), *TEST_PROGRAMS)
        module = ("go", "-C", f"{paths.TREE}/controlplane/kubernetes", "mod", "download", "-json", "k8s.io/kubernetes")
        kubernetes = pathlib.Path(json.loads(sh.out(*module))["Dir"])
        parts = testimages.Parts(
            programs, _busybox(folder), _pause(folder, kubernetes), _test_roots(folder), kubernetes / "test/images"
        )

        def make(building: pathlib.Path) -> None:
            sh.say("making the images of Kubernetes' tests")
            testimages.build(building, parts)

        source = [pathlib.Path(file).read_text() for file in (images.__file__, testimages.__file__)]
        built = [_identity(programs / name) for name in TEST_PROGRAMS]
        made_of = (*source, *built, parts.busybox.parent.name, parts.pause.parent.name, parts.roots.name)
        return _made(folder, "images-conformance", *made_of, make=make)


@contextlib.contextmanager
def _alone(purpose: str) -> Iterator[pathlib.Path]:
    """Give the folder for what is built; one process at a time for a purpose, for clusters that are apart share it.

    What two purposes have in common is made beside its place and renamed.
    """
    folder = pathlib.Path(paths.cache(), "site")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"lock-{purpose}").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield folder


def _install_missing(*more: str) -> None:
    missing = [name for name in (*MACHINE_PACKAGES, *more) if not sh.succeeds("dpkg", "-s", name)]
    if missing:
        sh.say(f"installing {' '.join(missing)}")
        sh.out("apt-get", "-q", "update")
        install = ("apt-get", "-qy", "install", "--no-install-recommends", *missing)
        sh.out("env", "DEBIAN_FRONTEND=noninteractive", *install)


def _rootfs(folder: pathlib.Path, suite: str) -> pathlib.Path:
    """Return a root file system for hosts: a Debian suite with layout.PACKAGES, keyed by that list."""

    def make(building: pathlib.Path) -> None:
        sh.say(f"building the hosts' root file system, Debian {suite} (1 to 2 minutes)")
        _debian(folder, building, suite=suite, variant="apt", packages=layout.PACKAGES)
        shutil.rmtree(building / "dev")  # each host gets one of its own
        (building / "dev").mkdir()

    key = (suite, "--variant=apt", *MMDEBSTRAP, *layout.PACKAGES)
    return _made(folder, f"rootfs-{suite}", *key, make=make)


def _debian(folder: pathlib.Path, target: pathlib.Path, *, suite: str, variant: str, packages: tuple[str, ...]) -> None:
    """Fill a folder with a variant of a Debian suite, as mmdebstrap calls it, and packages."""
    sources = folder / f"{target.stem}.list"
    sources.write_text(sh.out(f"{paths.TREE}/scripts/debian-sources.py", suite))
    settings = [f"--aptopt={setting}" for setting in _apt_settings()]
    include = f"--include={','.join(packages)}"
    argv = (f"--variant={variant}", *MMDEBSTRAP, *settings, include, suite, str(target), str(sources))
    sh.logged(folder / f"{target.stem}.log", "mmdebstrap", *argv)


def _test_roots(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder with the Debian packages of each base of the test images, unpacked."""

    def make(building: pathlib.Path) -> None:
        for name, packages in testimages.ROOTS.items():
            sh.say(f"unpacking the Debian packages of the test images on {name} (20 seconds)")
            _debian(folder, building / name, suite=layout.IMAGES_SUITE, variant="extract", packages=packages)

    key = json.dumps(testimages.ROOTS)
    return _made(folder, "images-conformance-roots", layout.IMAGES_SUITE, *MMDEBSTRAP, key, make=make)


def _busybox(folder: pathlib.Path) -> pathlib.Path:
    """Return busybox as its authors release it."""
    script = pathlib.Path(paths.TREE, "tests/site/busybox.sh")

    def make(building: pathlib.Path) -> None:
        sh.say("building busybox (2 minutes)")
        sh.logged(folder / "busybox.log", str(script), str(building / "busybox"))

    return _made(folder, "busybox", script.read_text(), make=make) / "busybox"


def _pause(folder: pathlib.Path, kubernetes: pathlib.Path) -> pathlib.Path:
    """Return upstream's pause program, built as its Makefile does."""
    source = kubernetes / "build/pause/linux/pause.c"

    def make(building: pathlib.Path) -> None:
        sh.out("gcc", "-Os", "-Wall", "-static", "-DVERSION=v3.10.2", "-o", str(building / "pause"), str(source))

    return _made(folder, "pause", source.read_text(), make=make) / "pause"


def _apt_settings() -> list[str]:
    """Return the machine's own way to the archive (proxies, certificates, clocks), for mmdebstrap's apt."""
    settings = []
    for line in sh.out("apt-config", "dump").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith(("Acquire::http", "Acquire::https", "Acquire::Check-")) and value != '"";':
            settings.append(f"{name} {value.rstrip(';')}")
    return settings


def _apptainer() -> str:
    script = f"{paths.TREE}/scripts/build-apptainer.sh"
    expected = sh.out(script, "--where").strip()
    if not pathlib.Path(expected).is_dir():
        sh.shown(script, "--path")  # minutes: its progress belongs on the terminal
    return expected


def _stream(folder: pathlib.Path) -> pathlib.Path:
    """Return the benchmark of memory, static: the same program on a host and in any image."""
    source = pathlib.Path(paths.TREE, "tests/bench/stream.c")
    target = folder / f"stream-{_hash(source.read_text())}"
    if not target.exists():
        building = target.with_suffix(".building")
        sh.out("gcc", "-O2", "-static", "-o", str(building), str(source))
        building.rename(target)
    return target


def _images(folder: pathlib.Path, *, rootfs: pathlib.Path, agnhost: pathlib.Path, stream: pathlib.Path) -> pathlib.Path:
    source = pathlib.Path(images.__file__).read_text()

    def make(building: pathlib.Path) -> None:
        sh.say("making the registry's images")
        images.build(building, rootfs=rootfs, agnhost=agnhost, stream=stream)

    return _made(folder, "images", source, rootfs.name, _identity(agnhost), stream.name, make=make)


def _sharedfs(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder with the server of a poor home and the module that it needs, keyed by what both are made of."""
    source = pathlib.Path(paths.TREE, "tests/site/sharedfs")
    program, requirements = source / "sharedfs.py", source / "requirements.txt"

    def make(building: pathlib.Path) -> None:
        pip = f"{sh.out(f'{paths.TREE}/scripts/venv.sh').strip()}/bin/pip"
        flags = ("--quiet", "--disable-pip-version-check", "--root-user-action=ignore", "--no-compile", "--no-deps")
        sh.out(pip, "install", *flags, "--require-hashes", "--target", str(building), "-r", str(requirements))
        shutil.copy2(program, building / "sharedfs")

    return _made(folder, "sharedfs", program.read_text(), requirements.read_text(), make=make)


def _identity(path: pathlib.Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _made(folder: pathlib.Path, name: str, *parts: str, make: Callable[[pathlib.Path], None]) -> pathlib.Path:
    """Return the folder for what it is made of; unless it is there `make` fills it, wholly or not at all."""
    target = folder / f"{name}-{_hash(*parts)}"
    if not target.is_dir():
        building = folder / f"{name}.building"
        shutil.rmtree(building, ignore_errors=True)  # what an interrupted build left in it
        building.mkdir()
        make(building)
        building.rename(target)
    return target
