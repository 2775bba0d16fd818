"""What runs on the hosts, in what order, and how each is known to work: a table of units.

A unit is a daemon (its script becomes the process and stays) or a step (done once). Either is ready
when its check holds, and starts as soon as all that it comes after are ready.
"""

import base64
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable

from hpksite import config, hosts, layout, paths, registry, sh

STATE = "/run/site"  # on a host: a pid file a daemon


@dataclasses.dataclass(frozen=True)
class Unit:
    """One daemon or step on one host. Scripts are sh, run as root on that host."""

    name: str
    host: layout.Host
    check: str
    daemon: str = ""
    step: Callable[[layout.Host], None] | None = None
    after: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Return the unit's name in `after` and in messages."""
        return f"{self.name}@{self.host.name}"

    @property
    def log(self) -> str:
        """Return where a daemon's output goes, on its host."""
        return f"/var/log/{self.name}.log"

    def is_ready(self) -> bool:
        """Say whether the unit does its work: a daemon's process is there, and the check holds."""
        alive = f"kill -0 $(cat {STATE}/{self.name}.pid) && " if self.daemon else ""
        return hosts.holds(self.host, alive + self.check)

    def start(self) -> None:
        """Start the daemon and return at once, or do the step and return when it is done."""
        if self.step:
            self.step(self.host)
            return
        hosts.spawn(
            self.host,
            f"mkdir -p {STATE}; rm -f {STATE}/{self.name}.pid; echo $$ >{STATE}/{self.name}.pid; exec >>{self.log} 2>&1; cd /; exec {self.daemon}",
        )

    def has_died(self) -> bool:
        """Say whether the daemon was started and has ended by itself."""
        pid = f"{STATE}/{self.name}.pid"
        return bool(self.daemon) and hosts.holds(self.host, f"test -e {pid} && ! kill -0 $(cat {pid})")

    def last_words(self) -> str:
        """Return the end of the daemon's log."""
        return sh.tail(str(hosts.folder(self.host) / "disk/var-log" / f"{self.name}.log"))


def table(profile: layout.Profile, *, images: pathlib.Path) -> list[Unit]:
    """Return everything that runs in a profile, on all hosts; `images` is what the registry shall serve."""
    out: list[Unit] = []
    for host in layout.HOSTS:
        out += _slurm(host)
        if profile.flannel:
            out += _flannel(host)
    if profile.accounting:
        out += _accounting(layout.CONTROLLER)
    out += _controller(layout.CONTROLLER, after=("accounts@ctl",) if profile.accounting else ())
    out += _registry(layout.CONTROLLER, images)
    return out


def _slurm(host: layout.Host) -> list[Unit]:
    return [
        Unit(
            "munged", host,
            daemon="setpriv --reuid=munge --regid=munge --clear-groups munged --foreground",
            check="munge -n >/dev/null",
        ),
        Unit(
            "slurmd", host,
            daemon=f"slurmd -D -N {host.name}",
            after=(f"munged@{host.name}", "slurmctld@ctl"),
            # a '*' after the state: slurmctld has not heard from the node
            check=f"sinfo -h -n {host.name} -o %T | grep -qxE 'idle|mixed|allocated|completing'",
        ),
    ]  # fmt: skip


def _controller(host: layout.Host, *, after: tuple[str, ...]) -> list[Unit]:
    return [
        Unit(
            "slurmctld", host, daemon="slurmctld -D", after=("munged@ctl", *after),
            check="scontrol ping | grep -q 'is UP'",
        )
    ]  # fmt: skip


def _accounting(host: layout.Host) -> list[Unit]:
    users = ",".join(user.name for user in layout.USERS)

    def database(on: layout.Host) -> None:
        hosts.root_shell(
            on,
            "mariadb",
            stdin="CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
            f"GRANT ALL ON slurm_acct_db.* TO slurm@localhost IDENTIFIED BY '{config.DATABASE_PASSWORD}';\n",
        )

    def accounts(on: layout.Host) -> None:
        for command in (
            f"cluster {config.CLUSTER}",
            f"account {layout.ACCOUNT} cluster={config.CLUSTER}",
            f"user {users} account={layout.ACCOUNT}",
        ):
            # sacctmgr fails where there is nothing to add; the unit's check is the judge
            hosts.root_shell(on, f"sacctmgr -i add {command} || true")

    return [
        Unit("mariadbd", host, daemon="mariadbd --user=mysql", check="mariadb-admin ping"),
        Unit(
            "database", host, step=database, after=("mariadbd@ctl",),
            check=f"mariadb -u slurm -p{config.DATABASE_PASSWORD} slurm_acct_db -e 'SELECT 1'",
        ),
        Unit(
            "slurmdbd", host, daemon="slurmdbd -D", after=("database@ctl", "munged@ctl"),
            check="sacctmgr -n show cluster",
        ),
        Unit(
            "accounts", host, step=accounts, after=("slurmdbd@ctl",),
            check=f"test $(sacctmgr -nP show assoc user={users} format=user | wc -l) = {len(layout.USERS)}",
        ),
    ]  # fmt: skip


def _flannel(host: layout.Host) -> list[Unit]:
    etcd = f"http://{layout.CONTROLLER.address}:{layout.ETCD_PORT}"

    def network(on: layout.Host) -> None:
        key, value = (
            base64.b64encode(text.encode()).decode()
            for text in ("/coreos.com/network/config", config.flannel_network())
        )
        hosts.root_shell(on, f"curl -fsS -d @- {etcd}/v3/kv/put", stdin=json.dumps({"key": key, "value": value}))

    def cni(on: layout.Host) -> None:
        text = config.conflist(hosts.root_shell(on, "cat /run/flannel/subnet.env"))
        # Written beside and renamed: a container that starts now reads the old one or the new one.
        hosts.root_shell(on, "cd /etc/apptainer/network; cat >.new; mv .new 40_fakeroot.conflist", stdin=text)

    out = [
        Unit(
            "flanneld", host,
            daemon=f"{config.PROGRAMS}/flanneld -etcd-endpoints={etcd} -iface=eth0 -ip-masq",
            after=("flannel-network@ctl",),
            check="test -s /run/flannel/subnet.env && test -e /sys/class/net/flannel.1",
        ),
        Unit(
            "cni", host, step=cni, after=(f"flanneld@{host.name}",),
            check='. /run/flannel/subnet.env; grep -q "${FLANNEL_SUBNET%.*}.0/" '
            "/etc/apptainer/network/40_fakeroot.conflist",
        ),
    ]  # fmt: skip
    if host == layout.CONTROLLER:
        out += [
            Unit(
                "etcd", host,
                daemon=f"{config.PROGRAMS}/etcd --data-dir=/var/lib/flannel-etcd --unsafe-no-fsync"
                f" --listen-client-urls={etcd} --advertise-client-urls={etcd}"
                " --listen-peer-urls=http://127.0.0.1:2380",
                check=f"curl -fsS {etcd}/health | grep -q true",
            ),
            Unit(
                "flannel-network", host, step=network, after=("etcd@ctl",),
                check=f"curl -fsS -d '{{\"key\":\"L2NvcmVvcy5jb20vbmV0d29yay9jb25maWc=\"}}' {etcd}/v3/kv/range"
                " | grep -q value",
            ),
        ]  # fmt: skip
    return out


def _registry(host: layout.Host, images: pathlib.Path) -> list[Unit]:
    address = f"{host.address}:{layout.REGISTRY_PORT}"

    def push(on: layout.Host) -> None:
        sh.out(
            "nsenter", f"--net={paths.NETNS_FOLDER}/{paths.netns(on.name)}",
            sys.executable, "-IS", str(pathlib.Path(__file__).with_name("registry.py")), address, str(images),
        )  # fmt: skip

    return [
        Unit(
            "registry", host,
            daemon="setpriv --reuid=docker-registry --regid=docker-registry --clear-groups"
            " docker-registry serve /etc/docker/registry/config.yml",
            check=f"curl -fsS http://{address}/v2/",
        ),
        Unit("images", host, step=push, after=("registry@ctl",), check=registry.check(address, images)),
    ]  # fmt: skip
