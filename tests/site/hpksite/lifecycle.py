"""up, down, kill, status: the cluster as a whole."""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator

from . import builds, cgroups, config, hosts, images, inside, layout, members, network, paths, registry, run, sh, units

SETTLE_SECONDS = 120  # a quiet machine needs three


def up(profile: layout.Profile) -> None:
    """Bring the cluster to the state that this checkout describes; quick if it is there already.

    A daemon or compute node that has gone is started again. A cluster of other parts or with another
    configuration, or one that lost its controller, is replaced.
    """
    if profile.cgroups and not cgroups.are_lent():
        sh.say("this machine lends no cgroups of version 1: Slurm does without (see tests/site/README.md)")
        profile = dataclasses.replace(profile, cgroups=False)
    with _lock():
        started = time.monotonic()
        built = builds.ensure(profile.suite)
        wanted = _fingerprint(profile, built)
        if _recorded() != wanted or run.host_pid(layout.CONTROLLER.name) is None:
            if network.names() or members.find():
                sh.say("another cluster, or the rest of one, is there: taking it down first")
            _tear_down()
            _prepare(built)
            pathlib.Path(paths.FINGERPRINT).write_text(wanted)
        for host in layout.HOSTS:
            if run.host_pid(host.name) is None:
                members.end(host)  # an interrupted `up` may have booted it without a note
                network.connect(host)
                hosts.boot(host, _root(profile, built, host))
        _settle(units.table(profile, images=built.images))
        sh.say(f"up after {time.monotonic() - started:.1f} s (profile {profile.name})")


def add_images(build: Callable[[], pathlib.Path]) -> None:
    """Make the running cluster's registry serve further images, building them if need be; quick if it does."""
    with _lock():
        if run.host_pid(layout.CONTROLLER.name) is None:
            raise sh.SiteError(f"cannot add images: {layout.CONTROLLER.name} is not up")
        images = build()
        if not inside.holds(layout.CONTROLLER, registry.check(units.REGISTRY, images)):
            units.push(layout.CONTROLLER, images)


def down(*, purge: bool) -> None:
    """Remove every process, namespace, mount and interface of the cluster; the users' homes too with `purge`.

    Works on whatever is there: nothing, half a cluster, or one that another checkout started.
    """
    with _lock():
        _tear_down()
        if purge:
            shutil.rmtree(paths.DATA, ignore_errors=True)


def kill(host: layout.Host) -> None:
    """Switch a host off, as a power cut does. `up` boots it again, with an empty disk."""
    with _lock():
        if run.host_pid(host.name) is None:
            raise sh.SiteError(f"cannot kill {host.name}: it is not up")
        members.end(host)


def status() -> tuple[str, bool]:
    """Return a table of hosts and daemons, and whether all of it is there and well."""
    profile = layout.PROFILES.get((_recorded() or "").partition(" ")[0])
    if profile is None:
        left = members.find()
        return f"down; {len(left)} processes are left ('site down' ends them)" if left else "down", False
    table = units.table(profile, images=pathlib.Path(paths.IMAGES))
    states = _states({unit.key: unit for unit in table})
    rows = [("HOST", "ADDRESS", "UNIT", "STATE")]
    for host in layout.HOSTS:
        rows += [(host.name, host.address, unit.name, states[unit.key]) for unit in table if unit.host == host]
    is_healthy = all(row[-1] == "ready" for row in rows[1:])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    verdict = f"profile {profile.name}: {'up and healthy' if is_healthy else 'NOT healthy'}"
    return "\n".join([*lines, verdict]), is_healthy


def _states(table: dict[str, units.Unit]) -> dict[str, str]:
    """Return a word on each unit. What comes after one that is not ready is not asked: it would hang."""
    states: dict[str, str] = {}

    def look(key: str) -> str:
        if key not in states:
            unit = table[key]
            missing = next((other for other in unit.after if look(other) != "ready"), "")
            if run.host_pid(unit.host.name) is None:
                states[key] = "HOST DOWN"
            elif missing:
                states[key] = f"WAITS for {missing}"
            else:
                states[key] = "ready" if unit.is_ready() else "NOT READY"
        return states[key]

    for key in table:
        look(key)
    return states


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    """Hold the machine's one lock on the cluster, waiting for another `up` or `down` to end."""
    with pathlib.Path(paths.LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sh.say("waiting for another up or down to end")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _settle(table: list[units.Unit]) -> None:
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
        if waiting and time.monotonic() > deadline:
            words = [f"--- {key}\n{unit.last_words()}" for key, unit in waiting.items() if key in started]
            raise sh.SiteError("\n".join([f"cannot get ready: {', '.join(waiting)}", *words]))
        time.sleep(0.03)


def _fingerprint(profile: layout.Profile, built: builds.Built) -> str:
    """Return `PROFILE HASH`: what the running cluster is made of, the text that shapes it included."""
    digest = hashlib.sha256(f"{profile} {built.fingerprint()}".encode())
    for name in ("cgroups", "config", "hosts", "layout", "network", "units"):
        digest.update(pathlib.Path(__file__).with_name(f"{name}.py").read_bytes())
    return f"{profile.name} {digest.hexdigest()}"


def _recorded() -> str | None:
    try:
        return pathlib.Path(paths.FINGERPRINT).read_text()
    except FileNotFoundError:
        return None


def _tear_down() -> None:
    members.end()
    network.down()
    cgroups.remove()
    for folder in (paths.RUN, paths.HOSTS, paths.PROGRAMS):
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(built: builds.Built) -> None:
    """Lay out what the hosts share: homes, the layer of built programs, the switch."""
    pathlib.Path(paths.HOME).mkdir(parents=True, exist_ok=True)
    for user in layout.USERS:
        home = pathlib.Path(paths.HOME, user.name)
        if not home.exists():
            shutil.copytree(built.rootfs / "etc/skel", home)
            for part in home.iterdir():
                os.chown(part, user.uid, user.uid)
        home.chmod(0o700)
        os.chown(home, user.uid, user.uid)
    for source, path in (
        (built.programs / "kubectl", "usr/local/bin/kubectl"),
        (built.stream, images.STREAM.lstrip("/")),
        # not for users
        *((built.sharedfs / name, f"{config.PROGRAMS}/{name}") for name in ("sharedfs", "mfusepy.py")),
        *((built.programs / name, f"{config.PROGRAMS}/{name}") for name in ("etcd", "flanneld")),
    ):
        target = pathlib.Path(f"{paths.PROGRAMS}/{path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    served = pathlib.Path(paths.IMAGES)  # `status` needs the index, also after the cache has been emptied
    served.mkdir(parents=True)
    shutil.copy2(built.images / "index.json", served)
    network.up()


def _root(profile: layout.Profile, built: builds.Built, host: layout.Host) -> hosts.Root:
    base = {name: (built.rootfs / name).read_text() for name in config.EXTENDED}
    return hosts.Root(
        layers=(paths.PROGRAMS, str(built.apptainer), str(built.rootfs)),
        files=config.files(profile, host, base=base),
        owners=config.owners(profile),
        absent=config.absent(profile),
        homes=config.EXPORT if profile.has_poor_home else "home",
        cgroups=profile.cgroups,
    )
