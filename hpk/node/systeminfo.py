"""Facts about the kubelet's machine for ``status.nodeInfo``."""

from __future__ import annotations

import platform
import uuid
from dataclasses import dataclass
from pathlib import Path

from hpk.images import image

KUBELET_VERSION = "v1.37.2"
"""The Kubernetes version that this kubelet reports; semantic, and never newer than the API server."""


@dataclass(frozen=True, kw_only=True)
class SystemInfo:
    """The machine, with the fields of ``v1.NodeSystemInfo``."""

    machine_id: str
    system_uuid: str
    boot_id: str
    kernel_version: str
    os_image: str
    architecture: str


def read(*, identity: str, os_image: str = "") -> SystemInfo:
    """Return the facts about this machine.

    Args:
        identity: An identity that is the same wherever the control plane runs, such as its CA's fingerprint. The node
            represents the cluster and outlives its hosts, so machine and system IDs derive from this.
        os_image: Override of the distribution's name, such as ``Slurm 24.11 on Debian GNU/Linux 12``.
    """
    lasting = uuid.uuid5(uuid.NAMESPACE_URL, f"hpk:{identity}")
    return SystemInfo(
        machine_id=lasting.hex,
        system_uuid=str(lasting),
        boot_id=_read_line("/proc/sys/kernel/random/boot_id"),
        kernel_version=platform.release(),
        os_image=os_image or _distribution(),
        architecture=image.host_architecture(),
    )


def has_selinux() -> bool:
    """Return whether this kernel has SELinux enabled. The compute nodes are assumed to be alike."""
    try:
        return "selinuxfs" in Path("/proc/filesystems").read_text(encoding="ascii")
    except OSError:
        return False


def _read_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    except OSError:
        return "Linux"
