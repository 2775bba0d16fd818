"""A host: network, mount, pid, uts and ipc namespaces over an overlay of the shared root file system."""

import dataclasses
import json
import os
import pathlib
import shutil
import stat
import traceback
from typing import NoReturn

from . import cgroups, layout, linux, paths, run, sh

# (name, type, major, minor): what an ordinary host shows its users.  Everyone may use fuse and tun.
DEVICES = (
    ("null", "c", 1, 3), ("zero", "c", 1, 5), ("full", "c", 1, 7), ("random", "c", 1, 8), ("urandom", "c", 1, 9),
    ("tty", "c", 5, 0), ("fuse", "c", 10, 229), ("net/tun", "c", 10, 200),
)  # fmt: skip
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
GPU_MAJOR = 195  # NVIDIA's: a job that does not have a GPU must not be denied anything else with it
LOOP_DEVICES = 16  # setuid Apptainer mounts images through them, and makes further ones itself
# Folders on the machine's own disk: overlay upper directories cannot lie on an overlay.
ON_DISK = {"tmp": 0o1777, "var/tmp": 0o1777, "scratch": 0o1777, "var/log": 0o755, "var/spool": 0o755}
SAFE = linux.MS_NOSUID | linux.MS_NODEV


@dataclasses.dataclass(frozen=True)
class Root:
    """What a host's root file system is made of.

    layers: folders, topmost first, that all hosts share and none changes.
    files: {path: (content, mode)}, laid over them for this host.
    owners: {path: user} where that is not root; folders that are missing are made.
    absent: files and folders of the layers that this host does not have.
    homes: the folder on which the users' homes are mounted.
    cgroups: the host has cgroups of its own; else it sees none.
    """

    layers: tuple[str, ...]
    files: dict[str, tuple[str, int]]
    owners: dict[str, str]
    absent: tuple[str, ...] = ()
    homes: str = "home"
    cgroups: bool = False


def disk(host: layout.Host, name: str) -> pathlib.Path:
    """Return where on the machine one of a host's ON_DISK folders is."""
    return pathlib.Path(paths.HOSTS, host.name, "disk", name.replace("/", "-"))


def boot(host: layout.Host, root: Root) -> None:
    """Start a host, with an empty disk, and return when its root is in place; its daemons are not started here.

    Its network namespace must be there, and no process of it. A SiteError tells why it did not boot.
    """
    _lay_out(host, root)
    if root.cgroups:
        cgroups.make(host)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _launch(host, root, report=writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        answer = pipe.read()  # to its end, which is when the host's first process becomes tini
    os.waitpid(child, 0)
    try:
        pid = int(json.loads(answer)["pid"])
        identity = f"{pid} {run.start_time(pid)}\n"
    except (ValueError, KeyError, OSError):
        raise sh.SiteError(f"cannot boot {host.name}:\n{answer or '(its first process said nothing)'}") from None
    pathlib.Path(paths.pid_file(host.name)).write_text(identity)


def _lay_out(host: layout.Host, root: Root) -> None:
    """Make the host's folders on disk and the layer that holds its own configuration."""
    base = pathlib.Path(paths.HOSTS, host.name)
    shutil.rmtree(base, ignore_errors=True)
    for name in ("upper", "work", "root"):
        (base / name).mkdir(parents=True)
    for name, mode in ON_DISK.items():
        disk(host, name).mkdir(parents=True)
        disk(host, name).chmod(mode)
    for name, (content, mode) in {**root.files, paths.MARKER: (f"{host.name} {paths.APART}\n", 0o444)}.items():
        path = base / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
    for name in root.absent:
        path = base / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))  # how overlayfs writes down that a name is gone


def _launch(host: layout.Host, root: Root, *, report: int) -> NoReturn:
    """In a child of `site up`: fork the host's first process into new namespaces, report its pid, end."""
    try:
        os.setsid()
        linux.enter_netns(paths.netns_file(paths.netns(host.name)))
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            _first_process(host, root)
        os.write(report, json.dumps({"pid": pid}).encode())
        os._exit(0)
    except BaseException:  # noqa: BLE001 -- whatever it is, the parent must hear of it, and this child end here
        os.write(report, traceback.format_exc().encode())
    os._exit(1)


def _first_process(host: layout.Host, root: Root) -> NoReturn:
    """As pid 1 of the host: lay out its root, move into it, become an init that reaps."""
    if root.cgroups:
        cgroups.enter(host)
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # nothing below is seen outside
    linux.set_hostname(host.name)
    base = pathlib.Path(paths.HOSTS, host.name)
    options = f"lowerdir={':'.join(root.layers)},upperdir={base}/upper,workdir={base}/work"
    linux.mount("overlay", f"{base}/root", "overlay", data=options)
    _mount_all(host, f"{base}/root", homes=root.homes)
    if root.cgroups:
        cgroups.mount(base / "root/sys/fs/cgroup")
    linux.pivot_root(f"{base}/root")
    for name, owner in root.owners.items():
        if not pathlib.Path(name).exists():
            pathlib.Path(name).mkdir(parents=True)
        shutil.chown(name, owner, owner)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.execve("/usr/bin/tini", ["tini", "--", "sleep", "infinity"], {"PATH": run.ROOT_PATH})  # noqa: S606


def _mount_all(host: layout.Host, root: str, *, homes: str) -> None:
    """Mount what an ordinary host has: /proc, /sys, /dev, /run, its own disk, and the shared /home."""
    linux.mount("proc", f"{root}/proc", "proc", flags=SAFE | linux.MS_NOEXEC)
    linux.mount("sysfs", f"{root}/sys", "sysfs", flags=SAFE | linux.MS_NOEXEC)
    linux.mount("tmpfs", f"{root}/run", "tmpfs", flags=SAFE, data="mode=755")
    linux.mount("tmpfs", f"{root}/dev", "tmpfs", flags=linux.MS_NOSUID, data="mode=755")
    _fill_dev(host, f"{root}/dev")
    for name in ON_DISK:
        pathlib.Path(root, name).mkdir(parents=True, exist_ok=True)
        linux.mount(str(disk(host, name)), f"{root}/{name}", flags=linux.MS_BIND)
    target = pathlib.Path(root, homes)
    if homes != "home":  # what exports them is nobody's business but root's
        target.parent.chmod(0o700)
        target.mkdir()
    linux.mount(paths.HOME, str(target), flags=linux.MS_BIND)


def _fill_dev(host: layout.Host, dev: str) -> None:
    """Fill a host's /dev. No driver is behind its GPUs: enough to be allocated, denied and bound."""
    for name in ("net", "pts", "shm", "mqueue"):
        pathlib.Path(dev, name).mkdir()
    for name, kind, major, minor in DEVICES:
        linux.make_device(f"{dev}/{name}", kind, major, minor, mode=0o666)
    linux.make_device(f"{dev}/loop-control", "c", 10, 237, mode=0o660)
    for number in range(LOOP_DEVICES):
        linux.make_device(f"{dev}/loop{number}", "b", 7, number, mode=0o660)
    for number in range(host.gpus):
        linux.make_device(f"{dev}/nvidia{number}", "c", GPU_MAJOR, number, mode=0o666)
    for name, target in LINKS.items():
        pathlib.Path(dev, name).symlink_to(target)
    terminals = "newinstance,gid=5,mode=620,ptmxmode=666"
    linux.mount("devpts", f"{dev}/pts", "devpts", flags=linux.MS_NOSUID | linux.MS_NOEXEC, data=terminals)
    linux.mount("tmpfs", f"{dev}/shm", "tmpfs", flags=SAFE, data="mode=1777")
    linux.mount("mqueue", f"{dev}/mqueue", "mqueue", flags=SAFE | linux.MS_NOEXEC)
