"""What the cluster consists of: hosts, users, and the profiles that say how much the site prepared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Host:
    """A machine of the cluster, as Slurm is told about it (more than the real machine has)."""

    name: str
    address: str
    cpus: int
    memory_mb: int
    gpus: int = 0


@dataclasses.dataclass(frozen=True)
class User:
    """An ordinary account, with its first subordinate id if the profile gives any."""

    name: str
    uid: int
    subid: int


@dataclasses.dataclass(frozen=True)
class Profile:
    """How far a site has prepared for pods. One field a difference, so that a further profile is data.

    setuid_apptainer: Apptainer as an administrator installs it, with CNI; else as Debian packages it.
    subordinate_ids: /etc/subuid and /etc/subgid have entries for the users.
    flannel: flanneld on every host, and the CNI network `fakeroot` made from its subnet.
    accounting: slurmdbd with MariaDB, so that sacct answers.
    kubectl: on every host's PATH.
    home_locks: whom a lock on a file in /home binds: `all` hosts, on the machine's own disk; `host` (this one only) or
        `none`, on a FUSE file system that refuses what NFS and Lustre often refuse (see tests/site/sharedfs).
    strict: jobs must name account and time limit, one partition gives whole nodes, Slurm limits the rate of RPCs.
    submit_limit: how many jobs alice may have, queued and running; 0 is no limit.
    filtered: compute nodes take only Slurm's and ssh's connections from the login node, and do not reach the registry.
    cgroups: Slurm confines memory and devices, tracks processes and accounts by cgroups; else by its own means.
    kill_wait: seconds between Slurm's SIGTERM and SIGKILL; 0 is Slurm's default, 30.
    suite: the hosts' Debian, and so their Slurm and their Python.
    """

    name: str
    setuid_apptainer: bool
    subordinate_ids: bool
    flannel: bool
    accounting: bool
    kubectl: bool
    home_locks: str
    strict: bool
    submit_limit: int
    filtered: bool
    cgroups: bool
    kill_wait: int
    suite: str

    @property
    def has_poor_home(self) -> bool:
        """Say whether /home is a FUSE file system, which can less than a disk."""
        return self.home_locks != "all"


PROFILES = {
    "flannel": Profile(
        name="flannel",
        setuid_apptainer=True,
        subordinate_ids=True,
        flannel=True,
        accounting=True,
        kubectl=True,
        home_locks="all",
        strict=False,
        submit_limit=0,
        filtered=False,
        cgroups=True,
        kill_wait=10,  # tests wait for it
        suite="trixie",
    ),
    "bare": Profile(
        name="bare",
        setuid_apptainer=False,
        subordinate_ids=False,
        flannel=False,
        accounting=False,
        kubectl=False,
        home_locks="none",
        strict=True,
        submit_limit=5,
        filtered=True,
        cgroups=False,
        kill_wait=0,
        suite="trixie",
    ),
    "older": Profile(
        name="older",
        setuid_apptainer=True,
        subordinate_ids=True,
        flannel=False,
        accounting=True,
        kubectl=True,
        home_locks="host",
        strict=False,
        submit_limit=0,
        filtered=False,
        cgroups=False,
        kill_wait=10,
        suite="bookworm",
    ),
}

CONTROLLER = Host("ctl", "10.77.0.1", cpus=8, memory_mb=8000)
HOSTS = (
    CONTROLLER,
    Host("c1", "10.77.0.11", cpus=32, memory_mb=32000),
    Host("c2", "10.77.0.12", cpus=32, memory_mb=32000, gpus=2),
)
USERS = (User("alice", 2000, subid=100000), User("bob", 2001, subid=165536))
SUBIDS = 65536  # ids a user has from `subid` on
ACCOUNT = "research"  # Slurm's account of every user

GATEWAY = "10.77.0.254"  # the switch itself: it answers, and leads nowhere
PREFIX = 24
POD_NETWORK = "10.244.0.0/16"
REGISTRY_PORT = 5000
ETCD_PORT = 2379  # flannel's etcd, on the controller

# What Debian gives every host.  The list's hash is part of the key of the cached root file system.
PACKAGES = (
    "slurm-wlm", "slurmdbd", "mariadb-server", "munge",
    "iproute2", "iputils-ping", "nftables", "iptables", "iperf3", "netbase", "netcat-openbsd", "curl",
    "python3", "python3-yaml", "ca-certificates", "jq",
    "uidmap", "fuse3", "squashfuse", "fuse-overlayfs", "squashfs-tools", "fuse2fs", "gocryptfs", "libseccomp2",
    "docker-registry", "busybox-static", "tini",
    "procps", "psmisc", "lsof", "strace", "less", "file",
    "sysbench", "fio", "socat", "openssh-server", "openssh-client",
)  # fmt: skip
IMAGES_SUITE = "trixie"  # from whose files the registry's images are made
