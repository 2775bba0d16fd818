"""What runs on the hosts, in what order, and how each is known to work: a table of units.

A unit is a daemon (its command becomes the process and stays) or a step (done once). Either is ready
when its check holds, and starts as soon as all that it comes after are ready.
"""

import base64
import dataclasses
import json
import pathlib
import shlex
import sys
from collections.abc import Callable

from . import config, hosts, inside, layout, paths, registry, run, sh

STATE = "/run/site"  # on a host: a pid file a daemon
ETCD = f"http://{layout.CONTROLLER.address}:{layout.ETCD_PORT}"
# What a host's own init starts begins in the host's cgroups; what comes from outside goes there.
OWN_CGROUPS = 'for list in /sys/fs/cgroup/*/cgroup.procs; do [ ! -e "$list" ] || echo 0 >"$list"; done; '
REGISTRY = f"{layout.CONTROLLER.address}:{layout.REGISTRY_PORT}"


@dataclasses.dataclass(frozen=True)
class Unit:
    """One daemon or step on one host. `daemon`, what goes before it, and `check` are sh, run as root on that host."""

    name: str
    host: layout.Host
    check: str
    daemon: str = ""
    before: str = ""
    step: Callable[[layout.Host], None] | None = None
    after: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return the unit's name in `after` and in messages."""
        return f"{self.name}@{self.host.name}"

    def is_ready(self) -> bool:
        """Say whether the unit does its work: a daemon's process is there, and the check holds."""
        alive = f"kill -0 $(cat {STATE}/{self.name}.pid) && " if self.daemon else ""
        return inside.holds(self.host, alive + self.check)

    def start(self) -> None:
        """Start the daemon and return at once, or do the step and return when it is done."""
        if self.step:
            self.step(self.host)
            return
        pid, log = f"{STATE}/{self.name}.pid", f"/var/log/{self.name}.log"
        script = f"mkdir -p {STATE}; echo $$ >{pid}; exec >>{log} 2>&1; cd /; {self.before}exec {self.daemon}"
        # an old pid file would make it look dead before it has written its own
        inside.shell(self.host, f"rm -f {pid}")
        inside.spawn(self.host, script)

    def has_died(self) -> bool:
        """Say whether the daemon was started and has ended by itself."""
        pid = f"{STATE}/{self.name}.pid"
        return bool(self.daemon) and inside.holds(self.host, f"test -s {pid} && ! kill -0 $(cat {pid})")

    def last_words(self) -> str:
        """Return the end of the daemon's log; of a step, which has none, what it waits for."""
        if not self.daemon:
            return f"it does not hold that: {self.check}"
        return sh.tail(hosts.disk(self.host, "var/log") / f"{self.name}.log")


def table(profile: layout.Profile, *, images: pathlib.Path) -> list[Unit]:
    """Return everything that runs in a profile, on all hosts; `images` is the layout that the registry serves."""
    controller = layout.CONTROLLER
    out: list[Unit] = []
    for host in layout.HOSTS:
        if profile.has_poor_home:
            out.append(_home(host, locks=profile.home_locks))
        out += _slurm(host, after=(f"home@{host.name}",) if profile.has_poor_home else ())
        out += _ssh(host)
        if profile.filtered:
            out.append(_firewall(host))
    out.append(_ssh_keys(controller, after=("home@ctl",) if profile.has_poor_home else ()))
    out.append(
        Unit(
            "slurmctld",
            controller,
            daemon="slurmctld -D",
            after=("munged@ctl", "accounts@ctl") if profile.accounting else ("munged@ctl",),
            check="scontrol ping | grep -q 'is UP'",
        )
    )
    if profile.accounting:
        out += _accounting(controller)
    if profile.flannel:
        out += _etcd(controller)
        for host in layout.HOSTS:
            out += _flannel(host)
    return out + _registry(controller, images)


def _home(host: layout.Host, *, locks: str) -> Unit:
    return Unit(
        "home",
        host,
        daemon=f"{config.PROGRAMS}/sharedfs --locks {locks} /{config.EXPORT} /home",
        check=f"mountpoint -q /home && test -d /home/{layout.USERS[0].name}",
    )


def _slurm(host: layout.Host, *, after: tuple[str, ...] = ()) -> list[Unit]:
    return [
        Unit(
            "munged",
            host,
            daemon="setpriv --reuid=munge --regid=munge --clear-groups munged --foreground",
            check="munge -n >/dev/null",
        ),
        Unit(
            "slurmd",
            host,
            daemon=f"slurmd -D -N {host.name}",
            before=OWN_CGROUPS,
            after=(f"munged@{host.name}", "slurmctld@ctl", *after),
            # Whole words: a '*' after the state says that slurmctld has not heard from the node.
            check=f"sinfo -h -n {host.name} -o %T | grep -qxE 'idle|mixed|allocated|completing'",
        ),
    ]


def _ssh(host: layout.Host) -> list[Unit]:
    def key(on: layout.Host) -> None:
        inside.shell(on, "mkdir -p /run/sshd; ssh-keygen -q -t ed25519 -N '' -f /run/sshd/host_key")

    return [
        Unit("ssh-host-key", host, step=key, check="test -s /run/sshd/host_key.pub"),
        Unit(
            "sshd",
            host,
            daemon="/usr/sbin/sshd -D -e",
            before=f"ulimit -S -n {run.DESCRIPTORS}; ",
            after=(f"ssh-host-key@{host.name}",),
            check="timeout 2 bash -c '</dev/tcp/127.0.0.1/22'",
        ),
    ]


def _ssh_keys(host: layout.Host, *, after: tuple[str, ...]) -> Unit:
    """Every user may log in from one host to another; the homes are shared, so one host makes the keys."""

    def keys(on: layout.Host) -> None:
        for user in layout.USERS:
            make = (
                f"umask 077; cd /home/{user.name}; mkdir -p .ssh; rm -f .ssh/id_ed25519*; "
                "ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519; cp .ssh/id_ed25519.pub .ssh/authorized_keys"
            )
            inside.shell(on, f"setpriv --reuid={user.uid} --regid={user.uid} --clear-groups sh -c {shlex.quote(make)}")

    made = " && ".join(f"test -s /home/{user.name}/.ssh/authorized_keys" for user in layout.USERS)
    return Unit("ssh-keys", host, step=keys, after=after, check=made)


def _firewall(host: layout.Host) -> Unit:
    def rules(on: layout.Host) -> None:
        inside.shell(on, "nft -f -", stdin=config.firewall(on))

    return Unit("firewall", host, step=rules, check="nft list table inet site")


def _accounting(host: layout.Host) -> list[Unit]:
    users = ",".join(user.name for user in layout.USERS)

    def database(on: layout.Host) -> None:
        create = "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        grant = f"GRANT ALL ON slurm_acct_db.* TO slurm@localhost IDENTIFIED BY '{config.DATABASE_PASSWORD}';\n"
        inside.shell(on, "mariadb", stdin=create + grant)

    def accounts(on: layout.Host) -> None:
        for command in (
            f"cluster {config.CLUSTER}",
            f"account {layout.ACCOUNT} cluster={config.CLUSTER}",
            f"user {users} account={layout.ACCOUNT}",
        ):
            # It fails where there is nothing to add; the unit's check is the judge.
            inside.shell(on, f"sacctmgr -i add {command} || true")

    return [
        Unit("mariadbd", host, daemon="mariadbd --user=mysql", check="mariadb-admin ping"),
        Unit(
            "database",
            host,
            step=database,
            after=("mariadbd@ctl",),
            check=f"mariadb -u slurm -p{config.DATABASE_PASSWORD} slurm_acct_db -e 'SELECT 1'",
        ),
        Unit(
            "slurmdbd",
            host,
            daemon="slurmdbd -D",
            after=("database@ctl", "munged@ctl"),
            check="sacctmgr -n show cluster",
        ),
        Unit(
            "accounts",
            host,
            step=accounts,
            after=("slurmdbd@ctl",),
            check=f"test $(sacctmgr -nP show assoc user={users} format=user | wc -l) = {len(layout.USERS)}",
        ),
    ]


def _etcd(host: layout.Host) -> list[Unit]:
    key = base64.b64encode(config.FLANNEL_KEY.encode()).decode()

    def network(on: layout.Host) -> None:
        value = base64.b64encode(config.flannel_network().encode()).decode()
        inside.shell(on, f"curl -fsS -d @- {ETCD}/v3/kv/put", stdin=json.dumps({"key": key, "value": value}))

    return [
        Unit(
            "etcd",
            host,
            daemon=f"{config.PROGRAMS}/etcd --data-dir=/var/lib/flannel-etcd --unsafe-no-fsync"
            f" --listen-client-urls={ETCD} --advertise-client-urls={ETCD}"
            " --listen-peer-urls=http://127.0.0.1:2380",
            check=f"curl -fsS {ETCD}/health | grep -q true",
        ),
        Unit(
            "flannel-network",
            host,
            step=network,
            after=("etcd@ctl",),
            check=f"""curl -fsS -d '{{"key": "{key}"}}' {ETCD}/v3/kv/range | grep -q value""",
        ),
    ]


def _flannel(host: layout.Host) -> list[Unit]:
    conflist = "/etc/apptainer/network/40_fakeroot.conflist"

    def cni(on: layout.Host) -> None:
        text = config.conflist(inside.shell(on, "cat /run/flannel/subnet.env"))
        # Written beside and renamed: a container that starts now reads the old one or the new one.
        inside.shell(on, f"cat >{conflist}.new; mv {conflist}.new {conflist}", stdin=text)

    return [
        Unit(
            "flanneld",
            host,
            daemon=f"{config.PROGRAMS}/flanneld -etcd-endpoints={ETCD} -iface=eth0 -ip-masq",
            after=("flannel-network@ctl",),
            check="test -s /run/flannel/subnet.env && test -e /sys/class/net/flannel.1",
        ),
        Unit(
            "cni",
            host,
            step=cni,
            after=(f"flanneld@{host.name}",),
            check=f'. /run/flannel/subnet.env; grep -q "${{FLANNEL_SUBNET%.*}}.0/" {conflist}',
        ),
    ]


def push(host: layout.Host, images: pathlib.Path) -> None:
    """Make the registry, which runs on `host`, serve the images of a layout too."""
    program = pathlib.Path(__file__).with_name("registry.py")
    netns = paths.netns_file(paths.netns(host.name))
    sh.out("nsenter", f"--net={netns}", sys.executable, "-IS", str(program), REGISTRY, str(images.resolve()))


def _registry(host: layout.Host, images: pathlib.Path) -> list[Unit]:
    return [
        Unit(
            "registry",
            host,
            daemon="setpriv --reuid=docker-registry --regid=docker-registry --clear-groups"
            " docker-registry serve /etc/docker/registry/config.yml",
            check=f"curl -fsS http://{REGISTRY}/v2/",
        ),
        Unit(
            "images",
            host,
            step=lambda on: push(on, images),
            after=("registry@ctl",),
            check=registry.check(REGISTRY, images),
        ),
    ]
