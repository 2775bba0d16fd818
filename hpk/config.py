"""Settings: ``~/.hpk/config.toml`` < ``HPK_…`` environment variables < command line, read once, frozen.

Each field states its unit, its default and the reason. An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass, fields
from ipaddress import IPv4Network
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "config.toml"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a user or a site; ``scripts/hpk.sbatch`` describes the same for administrators."""

    state: Path = Path("~/.hpk")
    """The state directory, on a file system that all nodes share."""
    images: Path | None = None
    """Converted images, by manifest digest; on the shared file system. Default: ``<state>/images``."""
    images_gib: int = 50
    """Capacity in GiB for converted images, to which the two percentages apply. The file system's own would say little:
    on most sites a shared home is nearly full, and the user's quota is smaller.
    """
    image_gc_high_threshold_percent: int = 85
    """Percentage above which unused images are removed, the longest unused first (imageGCHighThresholdPercent)."""
    image_gc_low_threshold_percent: int = 80
    """Percentage at which that removal ends (imageGCLowThresholdPercent)."""
    image_minimum_gc_age: float = 120.0
    """Least seconds for which an image is kept after its last use (imageMinimumGCAge)."""
    image_maximum_gc_age: float = 0.0
    """Seconds after which an unused image is removed even if there is space; 0 is never (imageMaximumGCAge)."""
    scratch: str = "${TMPDIR:-/tmp}"
    """Volumes and container file systems, on the compute node's own disk; expanded by the job's shell."""
    image: Path | None = None
    """hpk.sif. Default: ``<state>/hpk.sif``, where ``hpk.sif install`` puts it."""

    etcd: str = "auto"
    """Where etcd's data are: ``shared`` (in the state directory), ``node`` (on the control plane's node, with a copy in
    the state directory that is at most half a second old), or ``auto``: ``shared`` if all hosts see that file
    system's locks and an fsync takes 20 ms at most.
    """
    node_name: str = "hpk"
    """The one node's name."""
    max_pods: int = 1000
    """Pods that the node accepts; upstream's 110 is for one machine, not for a cluster."""

    flags: str = ""
    """sbatch flags for every pod's job, before those of the pod's own annotation."""
    account: str = ""
    """Slurm account of the pods' jobs unless flags name one; hpk.sbatch sets it to its own job's."""
    prelude: str = ""
    """Shell lines at the start of every job, such as ``module load apptainer``."""
    apptainer: str = "apptainer"
    """The site's Apptainer command."""
    poll_seconds: float = 15.0
    """Shortest pause in seconds between periodic queries of slurmctld; without news it grows to a minute."""
    gateway: Path | None = None
    """The gateway's Unix socket on this host; set by hpk.sbatch and the launcher."""

    connect: str = "auto"
    """How a tunnel reaches the API server if its port is filtered: by ``srun``, by ``ssh``, or by either (``auto``)."""
    address: str = ""
    """The IPv4 address at which other nodes reach this host; detected by default."""
    network: str = "auto"
    """``auto``, ``flannel``, ``overlay`` or ``host``; ``auto`` takes the first that the site allows."""
    service_cidr: str = "10.96.0.0/16"
    """Network of ClusterIPs."""
    pod_cidr: str = "10.244.0.0/16"
    """Network of pods' addresses, if HPK assigns them (Flannel's are the site's)."""
    cluster_domain: str = "cluster.local"
    """The DNS domain of services."""

    insecure_registries: tuple[str, ...] = ()
    """``host:port`` of registries that speak plain HTTP; comma-separated in the environment."""

    container_log_max_size: int = 10
    """MiB after which a container's log continues in the next file (containerLogMaxSize)."""
    container_log_max_files: int = 5
    """Log files kept for one run of a container, at least 2 (containerLogMaxFiles)."""

    control_plane_memory: int = 512
    """The API server's soft memory limit in MiB (GOMEMLIMIT)."""
    log_level: str = "info"
    """``debug``, ``info``, ``warning`` or ``error``."""

    @property
    def account_flags(self) -> dict[str, str | None]:
        """The sbatch options of a pod with the lowest precedence."""
        return {"account": self.account} if self.account else {}

    @property
    def directory(self) -> jobdir.StateDirectory:
        """The state directory's paths."""
        return jobdir.StateDirectory(str(self.state))

    @property
    def images_directory(self) -> Path:
        """The directory of converted images."""
        return self.images or Path(self.directory.images)

    def images_for(self, *, has_one_id: bool) -> Path:
        """Return the directory of images for users with subordinate ids, or for those without."""
        return self.images_directory / "one-id" if has_one_id else self.images_directory

    @property
    def image_file(self) -> Path:
        """The program's own image."""
        return self.image or self.state / "hpk.sif"


CHOICES = {
    "network": ("auto", "flannel", "overlay", "host"),
    "connect": ("auto", "srun", "ssh"),
    "etcd": ("auto", "shared", "node"),
    "log_level": ("debug", "info", "warning", "error"),
}
LEAST = {
    "images_gib": 1,
    "image_minimum_gc_age": 0,
    "image_maximum_gc_age": 0,
    "max_pods": 1,
    "poll_seconds": 1,
    "container_log_max_size": 1,
    "container_log_max_files": 2,  # as the kubelet
    "control_plane_memory": 64,
}
"""Least values: smaller ones would spin, never start, remove all images, or keep no logs."""
SCRIPT_VARIABLES = {"HPK_BIND"}
"""Variables that only hpk.sbatch reads."""
SMALLEST_NETWORK = 30
"""The longest prefix: a smaller network has no address to give."""


def load(*, environment: Mapping[str, str], flags: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings once.

    Args:
        environment: Usually ``os.environ``; ``HPK_STATE`` also names the file's directory.
        flags: Values from the command line, by field name; None values do not count.

    Raises:
        errors.Fatal: A key is unknown, or a value is of the wrong kind; names it.
    """
    known = {field.name for field in fields(Settings)}
    state = Path((flags or {}).get("state") or environment.get("HPK_STATE") or Settings.state).expanduser()
    values: dict[str, Any] = {}
    file = state / FILE_NAME
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise errors.Fatal(f"Cannot read {file}: {error}") from error
    for key in values.keys() - known:
        raise errors.Fatal(f"Cannot use {file}: unknown setting '{key}'{_nearest(key, known)}")
    for name in known:
        if (text := environment.get(f"HPK_{name.upper()}")) not in (None, ""):
            values[name] = text
    values |= {key: value for key, value in (flags or {}).items() if value is not None}
    return _checked(values | {"state": state})


def strangers(environment: Mapping[str, str]) -> list[str]:
    """Return a message for each ``HPK_…`` variable that resembles a setting's; ignore others, which a site may have."""
    known = {f"HPK_{field.name.upper()}" for field in fields(Settings)} | SCRIPT_VARIABLES
    near = {
        name: difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.85)
        for name in sorted(environment)
        if name.startswith("HPK_") and name not in known
    }
    return [f"{name} is not a setting; did you mean {found[0]}?" for name, found in near.items() if found]


def _nearest(key: str, known: set[str]) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1)
    return f" (did you mean '{near[0]}'?)" if near else f" (known: {', '.join(sorted(known))})"


def _checked(values: dict[str, Any]) -> Settings:
    made = {name: _as_field(name, value) for name, value in values.items()}
    settings = Settings(**made)
    for name, known in CHOICES.items():
        if getattr(settings, name) not in known:
            raise errors.Fatal(f"Cannot use {name} '{getattr(settings, name)}' (known: {', '.join(known)})")
    for name, least in LEAST.items():
        if not getattr(settings, name) >= least:  # "nan" is neither more nor less
            raise errors.Fatal(f"Cannot use {name} {getattr(settings, name)}: it must be {least} or more")
    low, high = settings.image_gc_low_threshold_percent, settings.image_gc_high_threshold_percent
    if not 0 <= low < high <= 100:  # noqa: PLR2004 - percent
        raise errors.Fatal(
            f"Cannot use image_gc_low_threshold_percent {low} with image_gc_high_threshold_percent {high}: "
            "the low one must be below the high one, and both between 0 and 100"
        )
    for cidr in (settings.service_cidr, settings.pod_cidr):
        _check_network(cidr)
    return settings


def _check_network(cidr: str) -> None:
    try:
        network = IPv4Network(cidr)
    except ValueError as error:
        raise errors.Fatal(f"Cannot use the CIDR '{cidr}': {error}") from error
    if network.prefixlen > SMALLEST_NETWORK:
        raise errors.Fatal(f"Cannot use the CIDR '{cidr}': it must be /{SMALLEST_NETWORK} or larger")


def _as_field(name: str, value: Any) -> Any:
    kind = {field.name: str(field.type) for field in fields(Settings)}[name]
    try:
        if "Path" in kind:
            return Path(os.path.expandvars(str(value))).expanduser()
        if "tuple" in kind:
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(part.strip() for part in parts if part.strip())
        return {"int": int, "float": float}.get(kind, str)(value)
    except (TypeError, ValueError) as error:
        raise errors.Fatal(f"Cannot use setting {name}: {value!r} is not of type {kind}") from error
