"""The seccomp filter of containers that ask for ``RuntimeDefault``, from the profile of Podman and CRI-O; pure.

``seccomp.json`` is ``pkg/seccomp/seccomp.json`` of go.podman.io/common v0.66.0, unchanged (Apache-2.0, The
containers/common authors; a test checks its digest). crun has no profile of its own; this one suits containers in user
namespaces, whose root may mount, unshare and so on as far as the kernel allows.
"""

from __future__ import annotations

import os

from hpk.agent.boot import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROFILE = os.path.join(os.path.dirname(__file__), "seccomp.json")
_AVAILABLE = "/proc/sys/kernel/seccomp/actions_avail"
# uname's machine: the names that Go, and thus the profile, and libseccomp give it.
_MACHINES = {
    "x86_64": ("amd64", "SCMP_ARCH_X86_64"),
    "aarch64": ("arm64", "SCMP_ARCH_AARCH64"),
    "ppc64le": ("ppc64le", "SCMP_ARCH_PPC64LE"),
    "s390x": ("s390x", "SCMP_ARCH_S390X"),
    "riscv64": ("riscv64", "SCMP_ARCH_RISCV64"),
}


def runtime_default(granted: list[str], *, available: str = _AVAILABLE) -> dict[str, Any]:
    """Return the OCI ``seccomp`` object for a container with these capabilities on this machine.

    Raises:
        ValueError: The kernel has no filters; a container that asks for one must not run without it.
    """
    if not os.path.exists(available):
        raise ValueError(
            "Cannot apply seccompProfile RuntimeDefault: the kernel of this node has no seccomp filters"
            " (CONFIG_SECCOMP_FILTER). Set the profile's type to Unconfined, or choose other nodes"
        )
    with open(PROFILE, encoding="utf-8") as file:
        return convert(quickjson.loads(file.read()), machine=os.uname().machine, granted=granted)


def convert(profile: dict[str, Any], *, machine: str, granted: list[str]) -> dict[str, Any]:
    """Return an engine's profile for this machine and a bounding set (setupSeccomp in seccomp_linux.go there)."""
    arch, native = _MACHINES.get(machine, (machine, ""))
    made: dict[str, Any] = {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "syscalls": [_rule(rule) for rule in profile["syscalls"] if _applies(rule, arch, granted)],
    }
    for one in profile["archMap"]:
        if one["architecture"] == native:
            made["architectures"] = [native, *one["subArchitectures"]]
    return made


def _applies(rule: dict[str, Any], arch: str, granted: list[str]) -> bool:
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if arch in excludes.get("arches", ()) or any(name in granted for name in excludes.get("caps", ())):
        return False
    if includes.get("arches") and arch not in includes["arches"]:
        return False
    return all(name in granted for name in includes.get("caps", ()))


def _rule(rule: dict[str, Any]) -> dict[str, Any]:
    kept = {name: rule[name] for name in ("names", "action", "errnoRet") if rule.get(name) is not None}
    return kept | ({"args": rule["args"]} if rule.get("args") else {})
