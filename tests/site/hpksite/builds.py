"""The parts that take minutes to build, each cached outside the tree by what it is made of."""

import dataclasses
import hashlib
import json
import os
import pathlib
import shutil

from hpksite import images, layout, paths, sh

# What this needs of the machine itself; the Apptainer build looks after its own.
MACHINE_PACKAGES = ("mmdebstrap", "debian-archive-keyring", "iproute2", "procps", "util-linux", "curl")
PROGRAMS = ("etcd", "flanneld", "kubectl", "agnhost")
MMDEBSTRAP = (
    "--variant=apt", "--mode=root", "--quiet",
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
    images: pathlib.Path

    def fingerprint(self) -> str:
        """Return a text that changes when any part does."""
        programs = [(name, _identity(self.programs / name)) for name in PROGRAMS]
        return json.dumps([str(self.rootfs), str(self.apptainer), str(self.images), programs])


def ensure() -> Built:
    """Return all parts, building those that are missing."""
    _machine_packages()
    folder = pathlib.Path(paths.cache(), "site")
    folder.mkdir(parents=True, exist_ok=True)
    root = rootfs(folder)
    apptainer = pathlib.Path(sh.out(f"{paths.TREE}/scripts/build-apptainer.sh", "--path").strip())
    programs = folder / "programs"
    _programs(programs)
    return Built(root, apptainer, programs, _images(folder, rootfs=root, agnhost=programs / "agnhost"))


def rootfs(folder: pathlib.Path) -> pathlib.Path:
    """Return the hosts' root file system: Debian with layout.PACKAGES, keyed by that list."""
    key = _hash(layout.SUITE, *MMDEBSTRAP, *layout.PACKAGES)
    target = folder / f"rootfs-{layout.SUITE}-{key}"
    if target.is_dir():
        return target
    sh.say("building the hosts' root file system (about 2 minutes)")
    building = _fresh(folder / f"{target.name}.building")
    sources = sh.out(f"{paths.TREE}/scripts/debian-sources.py", layout.SUITE)
    listed = folder / "sources.list"
    listed.write_text(sources)
    sh.out(
        "mmdebstrap", *MMDEBSTRAP, f"--include={','.join(layout.PACKAGES)}",
        *(f"--aptopt={setting}" for setting in _apt_settings()),
        layout.SUITE, str(building), str(listed), log=str(folder / "rootfs.log"),
    )  # fmt: skip
    for device in (building / "dev").iterdir():  # each host gets a /dev of its own
        if not device.is_dir():
            device.unlink()
    building.rename(target)
    return target


def _apt_settings() -> list[str]:
    """Return the machine's own way to the archive (proxies, certificates, clocks), for mmdebstrap's apt."""
    settings = []
    for line in sh.out("apt-config", "dump").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith(("Acquire::http", "Acquire::https", "Acquire::Check-")) and value != '"";':
            settings.append(f"{name} {value.rstrip(';')}")
    return settings


def _machine_packages() -> None:
    missing = [name for name in MACHINE_PACKAGES if not sh.succeeds("dpkg", "-s", name)]
    if missing:
        sh.say(f"installing {' '.join(missing)}")
        sh.out("apt-get", "-q", "update")
        sh.out(
            "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qy", "install", "--no-install-recommends", *missing
        )


def _programs(folder: pathlib.Path) -> None:
    """Put upstream's binaries into `folder`; progress of a cold build goes to the terminal."""
    code = os.spawnlp(os.P_WAIT, "bash", "bash", f"{paths.TREE}/controlplane/build.sh", str(folder), *PROGRAMS)
    if code:
        raise sh.SiteError(f"cannot build {' '.join(PROGRAMS)}: controlplane/build.sh ended with {code}")


def _images(folder: pathlib.Path, *, rootfs: pathlib.Path, agnhost: pathlib.Path) -> pathlib.Path:
    source = pathlib.Path(images.__file__).read_text()
    target = folder / f"images-{_hash(source, rootfs.name, _identity(agnhost))}"
    if not target.is_dir():
        sh.say("making the registry's images")
        building = _fresh(folder / f"{target.name}.building")
        images.build(building, rootfs=rootfs, agnhost=agnhost)
        building.rename(target)
    return target


def _identity(path: pathlib.Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}"


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _fresh(folder: pathlib.Path) -> pathlib.Path:
    """Return an empty folder, clearing what an interrupted build left in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
