"""The input of all components: settings, paths, ports, this host's address."""

from __future__ import annotations

import ipaddress
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpk import config

LOOPBACK = "127.0.0.1"
AUTHORITIES = ("kubernetes", "etcd", "front-proxy", "link")
"""Separate authorities: the API server's clients, etcd's, the aggregation layer's, and pods' agents do not trust each
other's certificates."""
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager")


@dataclass(frozen=True, kw_only=True)
class Layout:  # long: one name for each file
    """All paths, ports and addresses; pure, nothing is created.

    Under ``<state>/state``, all of it 0700 and 0600::

        terms/, lock          the holder of the directory (hpk.controlplane.lock)
        owner.json            the same for others to read (hpk.controlplane.ownership)
        ports.json            the last start's ports
        etcd/                 the data, or their copy (hpk.controlplane.placement)
        pki/<authority>/      ca.crt, ca.key: persistent
        pki/service-account/  key, pub: persistent
        issued/               certificates and keys of this start
        kubeconfigs/          one for each identity, of this start
        admission.yaml        the API server's webhook configuration
        logs/                 one for each component
    """

    settings: config.Settings
    address: str
    """An IPv4 address that the other nodes can reach."""
    host_names: tuple[str, ...]
    """This host's names."""
    etcd_port: int
    api_port: int
    kubelet_port: int
    binaries: Mapping[str, str] = field(default_factory=dict)
    """Paths by name; a missing name stands for itself."""
    etcd_node_data: Path | None = None
    """etcd's data directory on this node, if not in the state directory."""
    etcd_quota_bytes: int = 2 << 30
    """The limit of etcd's database."""
    processors: int = field(default_factory=lambda: min(4, len(os.sched_getaffinity(0))))
    """How many processors the API server may use at once."""

    @property
    def root(self) -> Path:
        """The control plane's directory."""
        return Path(self.settings.directory.control_plane)

    @property
    def etcd_url(self) -> str:
        """The URL of etcd for its clients, on loopback only."""
        return f"https://{LOOPBACK}:{self.etcd_port}"

    @property
    def url(self) -> str:
        """The API server's URL for all who can reach this host."""
        return f"https://{self.address}:{self.api_port}"

    @property
    def local_url(self) -> str:
        """The API server's URL for processes of this host."""
        return f"https://{LOOPBACK}:{self.api_port}"

    @property
    def first_service_address(self) -> str:
        """The ClusterIP of the service ``kubernetes``."""
        return str(ipaddress.IPv4Network(self.settings.service_cidr)[1])

    @property
    def service_account_issuer(self) -> str:
        """The issuer of service account tokens; the same on every host, so that tokens survive a move."""
        return f"https://kubernetes.default.svc.{self.settings.cluster_domain}"

    @property
    def is_local(self) -> bool:
        """Whether only this host can reach the API server (for development)."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def etcd_data(self) -> Path:
        """The directory of etcd's data."""
        return self.etcd_node_data or self.etcd_copy

    @property
    def etcd_copy(self) -> Path:
        """The directory of etcd's data, or of their copy, in the state directory."""
        return self.root / "etcd"

    @property
    def issued(self) -> Path:
        """The directory of this start's certificates and keys."""
        return self.root / "issued"

    @property
    def admission(self) -> Path:
        """The API server's webhook configuration."""
        return self.root / "admission.yaml"

    def authority(self, name: str) -> Path:
        """Return the directory of an authority."""
        return self.root / "pki" / name

    def authority_certificate(self, name: str) -> Path:
        """Return the certificate of an authority."""
        return self.authority(name) / "ca.crt"

    def authority_key(self, name: str) -> Path:
        """Return the key of an authority."""
        return self.authority(name) / "ca.key"

    @property
    def service_account(self) -> Path:
        """The directory of the key pair (``key``, ``pub``) for service account tokens."""
        return self.root / "pki" / "service-account"

    def certificate(self, name: str) -> Path:
        """Return the path of a certificate of this start."""
        return self.issued / f"{name}.crt"

    def key(self, name: str) -> Path:
        """Return the path of that certificate's key."""
        return self.issued / f"{name}.key"

    def kubeconfig(self, identity: str) -> Path:
        """Return the kubeconfig of an identity (:mod:`hpk.controlplane.identities`)."""
        return self.root / "kubeconfigs" / identity

    def log(self, component: str) -> Path:
        """Return the log file of a component."""
        return self.root / "logs" / f"{component}.log"

    def binary(self, name: str) -> str:
        """Return the path of a program."""
        return self.binaries.get(name, name)

    def make_directories(self) -> None:
        """Create all directories, each 0700; fine if they exist."""
        for path in (
            self.root,
            self.etcd_copy,
            self.etcd_data,
            self.root / "pki",
            self.issued,
            self.root / "kubeconfigs",
            self.root / "logs",
        ):
            jobdir.make_directory(str(path))
            path.chmod(0o700)  # etcd rejects a data directory that others may read


def find_binaries() -> dict[str, str]:
    """Return the paths of the upstream programs on PATH.

    Raises:
        errors.Fatal: One is missing; the error names it.
    """
    found = {name: shutil.which(name) for name in BINARIES}
    if missing := [name for name, path in found.items() if path is None]:
        raise errors.Fatal(
            f"Cannot find {', '.join(missing)} on PATH: run inside hpk.sif, or build them with "
            "controlplane/build.sh DIR and put DIR on PATH"
        )
    return {name: path for name, path in found.items() if path}


def environment(*, memory_mib: int, processors: int) -> dict[str, str]:
    """Return the complete environment of a Go component.

    Nothing is inherited: a site's ``https_proxy`` would intercept the components' own connections, and Slurm's and the
    user's variables do not concern them.

    Args:
        memory_mib: The soft limit (GOMEMLIMIT), near which Go collects more often.
        processors: Threads that run Go code at once; each costs memory, which adds up with 128 processors.
    """
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "GOMEMLIMIT": f"{memory_mib}MiB",
        "GOMAXPROCS": str(processors),
        "GOGC": "100",
    }
