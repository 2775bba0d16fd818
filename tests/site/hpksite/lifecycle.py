"""up, down, status: the cluster as a whole."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

from hpksite import builds, config, hosts, layout, network, paths, run, sh, units

SETTLE_SECONDS = 120


@contextlib.contextmanager
def lock() -> Iterator[None]:
    """Hold the machine's one lock on the cluster, waiting for another `up` or `down` to end."""
    with open(paths.LOCK, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sh.say("waiting for another up or down to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def up(profile: layout.Profile) -> None:
    """Bring the cluster to the state that this checkout describes; quick if it is there already.

    A dead daemon or host is started again; a cluster of other parts or another configuration is
    replaced by this one.
    """
    with lock():
        started = time.monotonic()
        built = builds.ensure()
        wanted = fingerprint(profile, built)
        if _recorded() != wanted:
            if network.names() or hosts.members():
                sh.say("another cluster, or the rest of one, is there: taking it down first")
            _tear_down()
            os.makedirs(paths.RUN, exist_ok=True)
            _homes()
            _programs_layer(built)
            network.up()
            pathlib.Path(paths.FINGERPRINT).write_text(wanted)
        for host in layout.HOSTS:
            if run.host_pid(host.name) is None:
                hosts.boot(host, layers=_layers(built), files=_files(profile, built, host), owners=config.OWNERS)
        settle(units.table(profile, images=built.images))
        sh.say(f"up after {time.monotonic() - started:.1f} s (profile {profile.name})")


def settle(table: list[units.Unit]) -> None:
    """Start what is not ready, in order, and return when all is; a SiteError that names what is not."""
    waiting = {unit.key: unit for unit in table}
    started: set[str] = set()
    deadline = time.monotonic() + SETTLE_SECONDS
    while waiting:
        for key, unit in list(waiting.items()):
            if any(other in waiting for other in unit.after):
                continue
            if unit.is_ready():
                del waiting[key]
            elif key not in started:
                unit.start()
                started.add(key)
            elif unit.has_died():
                raise sh.SiteError(f"cannot keep {key} running; its last words:\n{unit.last_words()}")
        if time.monotonic() > deadline:
            stuck = [unit for key, unit in waiting.items() if key in started]
            words = "\n".join(f"--- {unit.key}\n{unit.last_words()}" for unit in stuck)
            raise sh.SiteError(f"cannot get ready: {', '.join(waiting)}\n{words}")
        time.sleep(0.03)


def down(*, purge: bool) -> None:
    """Remove every process, namespace, mount and interface of the cluster; /home too with `purge`.

    Works on whatever is there: nothing, half a cluster, or one that another checkout started.
    """
    with lock():
        _tear_down()
        if purge:
            shutil.rmtree(paths.DATA, ignore_errors=True)


def kill(host: layout.Host) -> None:
    """Switch a host off, as a power cut does. `up` boots it again, with an empty disk."""
    pid = run.host_pid(host.name)
    if pid is None:
        raise sh.SiteError(f"cannot kill {host.name}: it is not up")
    os.kill(pid, 9)
    sh.wait_until(lambda: run.host_pid(host.name) is None, seconds=20, what=f"the end of {host.name}")


def status() -> tuple[str, bool]:
    """Return a table of hosts and daemons, and whether all of it is there and well."""
    name = (_recorded() or "").partition(" ")[0]
    profile = layout.PROFILES.get(name)
    if profile is None:
        left = hosts.members()
        word = f"down, but {len(left)} processes are left: site down ends them" if left else "down"
        return f"the cluster is {word}", False
    images = pathlib.Path(paths.RUN, "images")
    rows = [("HOST", "ADDRESS", "UNIT", "STATE")]
    for unit in sorted(units.table(profile, images=images), key=lambda unit: layout.HOSTS.index(unit.host)):
        state = "ready" if unit.is_ready() else "host is down" if run.host_pid(unit.host.name) is None else "NOT READY"
        rows.append((unit.host.name, unit.host.address, unit.name, state))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    text = "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
    is_healthy = all(row[3] == "ready" for row in rows[1:])
    return f"profile {profile.name}\n{text}\n{'healthy' if is_healthy else 'NOT healthy'}", is_healthy


def fingerprint(profile: layout.Profile, built: builds.Built) -> str:
    """Return `PROFILE HASH`: what the running cluster is made of, this package's text included."""
    digest = hashlib.sha256(built.fingerprint().encode())
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return f"{profile.name} {digest.hexdigest()}"


def _recorded() -> str | None:
    try:
        return pathlib.Path(paths.FINGERPRINT).read_text()
    except FileNotFoundError:
        return None


def _tear_down() -> None:
    hosts.shut_down()
    network.down()
    shutil.rmtree(paths.RUN, ignore_errors=True)
    shutil.rmtree(paths.HOSTS, ignore_errors=True)
    shutil.rmtree(paths.PROGRAMS, ignore_errors=True)


def _homes() -> None:
    os.makedirs(paths.HOME, exist_ok=True)
    for path in (paths.DATA, paths.HOME):
        os.chmod(path, 0o755)
    for user in layout.USERS:
        home = pathlib.Path(paths.HOME, user.name)
        home.mkdir(exist_ok=True)
        home.chmod(0o700)
        os.chown(home, user.uid, user.uid)


def _programs_layer(built: builds.Built) -> None:
    """Lay the built programs out as a layer of the hosts' roots: kubectl for users, the rest for the site."""
    for name, where in (("kubectl", "usr/local/bin"), ("etcd", "opt/site/bin"), ("flanneld", "opt/site/bin")):
        target = pathlib.Path(paths.PROGRAMS, where, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built.programs / name, target)
        target.chmod(0o755)
    os.symlink(built.images, f"{paths.RUN}/images")


def _layers(built: builds.Built) -> list[str]:
    return [paths.PROGRAMS, str(built.apptainer), str(built.rootfs)]


def _files(profile: layout.Profile, built: builds.Built, host: layout.Host) -> config.Files:
    base = {name: (built.rootfs / name).read_text() for name in ("etc/passwd", "etc/group", "etc/shadow")}
    return config.files(profile, host, base=base)
