"""A host: network, mount, pid, uts and ipc namespaces over an overlay of the shared root file system."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import time
import traceback

from hpksite import layout, linux, network, paths, run, sh

# (name, type, major, minor): what an ordinary host shows its users.  Everyone may use fuse and tun.
DEVICES = (
    ("null", "c", 1, 3), ("zero", "c", 1, 5), ("full", "c", 1, 7), ("random", "c", 1, 8), ("urandom", "c", 1, 9),
    ("tty", "c", 5, 0), ("fuse", "c", 10, 229), ("net/tun", "c", 10, 200),
)  # fmt: skip
LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
LOOP_DEVICES = 16  # setuid Apptainer mounts images through them, and makes further ones itself
# Folders on the machine's own disk: overlay upper directories cannot lie on an overlay.
ON_DISK = {"tmp": 0o1777, "var/tmp": 0o1777, "scratch": 0o1777, "var/log": 0o755, "var/spool": 0o755}


def folder(host: layout.Host) -> pathlib.Path:
    """Return where a host's own files are on the machine."""
    return pathlib.Path(paths.HOSTS, host.name)


def boot(host: layout.Host, *, layers: list[str], files: dict[str, tuple[str, int]], owners: dict[str, str]) -> None:
    """Start a host and return when its root file system is in place; its daemons are not started here.

    `layers` are folders, topmost first; `files` is {path: (content, mode)} laid over them; `owners`
    names the user that a file or folder belongs to, where that is not root.
    """
    prepare(host, files=files)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        launch(host, layers=layers, owners=owners, report=writer)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        answer = pipe.read()  # up to the end: the host's first process closes it by becoming tini
    os.waitpid(child, 0)
    try:
        said = json.loads(answer)
        pid = int(said["pid"])
    except (ValueError, KeyError):
        raise SiteBootError(host, answer) from None
    with open(paths.pid_file(host.name), "w", encoding="ascii") as file:
        file.write(f"{pid} {run.start_time(pid)}\n")


class SiteBootError(sh.SiteError):
    """A host's first process died before its root was ready."""

    def __init__(self, host: layout.Host, answer: str) -> None:
        super().__init__(f"cannot boot {host.name}:\n{answer or '(it said nothing)'}")


def prepare(host: layout.Host, *, files: dict[str, tuple[str, int]]) -> None:
    """Make the host's folders on disk and the layer that holds its own configuration."""
    base = folder(host)
    shutil.rmtree(base, ignore_errors=True)
    for name in ("upper", "work", "root"):
        (base / name).mkdir(parents=True)
    for name, mode in ON_DISK.items():
        path = base / "disk" / name.replace("/", "-")
        path.mkdir(parents=True)
        path.chmod(mode)
    for name, (content, mode) in {**files, paths.MARKER: (host.name + "\n", 0o444)}.items():
        path = base / "upper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)


def launch(host: layout.Host, *, layers: list[str], owners: dict[str, str], report: int) -> None:
    """In a child of `site up`: fork the host's first process into new namespaces, and end. Never returns."""
    try:
        os.setsid()
        linux.enter_netns(f"{paths.NETNS_FOLDER}/{paths.netns(host.name)}")
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWPID)
        pid = os.fork()
        if pid:
            os.write(report, json.dumps({"pid": pid}).encode())
            os._exit(0)
        first_process(host, layers=layers, owners=owners)
    except BaseException:  # noqa: BLE001: whatever it is, the parent must hear of it
        os.write(report, traceback.format_exc().encode())
    os._exit(1)


def first_process(host: layout.Host, *, layers: list[str], owners: dict[str, str]) -> None:
    """As pid 1 of the host: lay out its root, move into it, become an init that reaps. Never returns."""
    linux.mount("", "/", flags=linux.MS_REC | linux.MS_PRIVATE)  # nothing below is seen outside
    linux.set_hostname(host.name)
    base = folder(host)
    root = str(base / "root")
    options = f"lowerdir={':'.join(layers)},upperdir={base}/upper,workdir={base}/work"
    linux.mount("overlay", root, "overlay", data=options)
    mounts(host, root)
    linux.pivot_root(root)
    for name, owner in owners.items():
        if not os.path.exists(name):
            os.makedirs(name)
        shutil.chown(name, owner, owner)
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    environment = {"PATH": run.ROOT_PATH, "LANG": "C.UTF-8"}
    os.execve("/usr/bin/tini", ["tini", "--", "sleep", "infinity"], environment)


def mounts(host: layout.Host, root: str) -> None:
    """Mount what an ordinary host has: /proc, /sys, /dev, /run, its own disk, and the shared /home."""
    safe = linux.MS_NOSUID | linux.MS_NODEV
    linux.mount("proc", f"{root}/proc", "proc", flags=safe | linux.MS_NOEXEC)
    linux.mount("sysfs", f"{root}/sys", "sysfs", flags=safe | linux.MS_NOEXEC)
    linux.mount("tmpfs", f"{root}/run", "tmpfs", flags=safe, data="mode=755")
    linux.mount("tmpfs", f"{root}/dev", "tmpfs", flags=linux.MS_NOSUID, data="mode=755")
    devices(host, f"{root}/dev")
    for name in ON_DISK:
        os.makedirs(f"{root}/{name}", exist_ok=True)
        linux.mount(str(folder(host) / "disk" / name.replace("/", "-")), f"{root}/{name}", flags=linux.MS_BIND)
    linux.mount(paths.HOME, f"{root}/home", flags=linux.MS_BIND)


def devices(host: layout.Host, dev: str) -> None:
    """Fill a host's /dev. Its GPUs are further names of /dev/null: enough to be allocated and bound."""
    for name in ("net", "pts", "shm", "mqueue"):
        os.makedirs(f"{dev}/{name}")
    for name, kind, major, minor in DEVICES:
        linux.make_device(f"{dev}/{name}", kind, major, minor, 0o666)
    linux.make_device(f"{dev}/loop-control", "c", 10, 237, 0o660)
    for number in range(LOOP_DEVICES):
        linux.make_device(f"{dev}/loop{number}", "b", 7, number, 0o660)
    for number in range(host.gpus):
        linux.make_device(f"{dev}/nvidia{number}", "c", 1, 3, 0o666)
    for name, target in LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    linux.mount("devpts", f"{dev}/pts", "devpts", flags=linux.MS_NOSUID | linux.MS_NOEXEC,
                data="newinstance,gid=5,mode=620,ptmxmode=666")  # fmt: skip
    linux.mount("tmpfs", f"{dev}/shm", "tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, data="mode=1777")
    linux.mount("mqueue", f"{dev}/mqueue", "mqueue", flags=linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)


def root_shell(host: layout.Host, script: str, *arguments: str, stdin: str | None = None) -> str:
    """Run a shell script as root on a host and return its stdout; a SiteError if it fails."""
    return sh.out(*_argv(host, script, *arguments), stdin=stdin)


def holds(host: layout.Host, script: str) -> bool:
    """Say whether a shell script, run as root on a host, exits with 0. False if the host is not up."""
    return run.host_pid(host.name) is not None and sh.succeeds(*_argv(host, script))


def _argv(host: layout.Host, script: str, *arguments: str) -> list[str]:
    pid = run.host_pid(host.name)
    if pid is None:
        raise sh.SiteError(f"cannot run on {host.name}: it is not up")
    return run.entering(pid, user="root", command=["/bin/sh", "-euc", script, "sh", *arguments])


def spawn(host: layout.Host, script: str) -> None:
    """Start a shell script on a host that outlives this process, as a child of the host's init."""
    subprocess.run(  # setsid --fork: nsenter has nothing to wait for
        _argv(host, 'exec setsid --fork /bin/sh -c "$1"', script),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def members() -> list[int]:
    """Return every process that belongs to the cluster, whoever started it.

    A process is known by what it is: its network namespace is one of the cluster's, or its root
    holds the hosts' marker. (Those in containers are in neither, but die with their host's pid
    namespace.)
    """
    spaces = set()
    for name in network.names():
        status = os.stat(f"{paths.NETNS_FOLDER}/{name}")
        spaces.add((status.st_dev, status.st_ino))
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            status = os.stat(f"/proc/{entry}/ns/net")
            inside = (status.st_dev, status.st_ino) in spaces or os.path.exists(f"/proc/{entry}/root/{paths.MARKER}")
        except OSError:
            continue  # it ended while we looked
        if inside:
            found.append(int(entry))
    return found


def shut_down(*, seconds: float = 20) -> None:
    """End every process of the cluster and return when none is left."""
    deadline = time.monotonic() + seconds
    while left := members():
        if time.monotonic() > deadline:
            raise sh.SiteError(f"cannot end the processes {left}: they are still there after {seconds:.0f} s")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
