"""The seccomp filter of containers that ask for ``RuntimeDefault``: pure, from the profile of Podman and CRI-O.

``seccomp.json`` is ``pkg/seccomp/seccomp.json`` of go.podman.io/common v0.66.0, unchanged (Apache-2.0, The containers/
common authors; a test holds its digest).  crun brings no profile; this one is made for containers in user namespaces,
whose root may mount, unshare and the like as the kernel lets it.

Imported only for a container that asks for it.
"""

from __future__ import annotations

import os

from hpk.agent.boot import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PROFILE = os.path.join(os.path.dirname(__file__), "seccomp.json")
_AVAILABLE = "/proc/sys/kernel/seccomp/actions_avail"
# uname's machine: the names of Go, in which the profile speaks, and of libseccomp.
_MACHINES = {
    "x86_64": ("amd64", "SCMP_ARCH_X86_64"),
    "aarch64": ("arm64", "SCMP_ARCH_AARCH64"),
    "ppc64le": ("ppc64le", "SCMP_ARCH_PPC64LE"),
    "s390x": ("s390x", "SCMP_ARCH_S390X"),
    "riscv64": ("riscv64", "SCMP_ARCH_RISCV64"),
}


def runtime_default(granted: list[str], *, available: str = _AVAILABLE) -> dict[str, Any]:
    """The OCI ``seccomp`` object for a container with these capabilities, on this machine.

    Raises:
        ValueError: The kernel has no filters; a container that wants one must not run without.
    """
    if not os.path.exists(available):
        raise ValueError(
            "Cannot apply seccompProfile RuntimeDefault: the kernel of this node has no seccomp filters"
            " (CONFIG_SECCOMP_FILTER). Set the profile's type to Unconfined, or choose other nodes"
        )
    with open(PROFILE, encoding="utf-8") as file:
        return convert(quickjson.loads(file.read()), machine=os.uname().machine, granted=granted)


def convert(profile: dict[str, Any], *, machine: str, granted: list[str]) -> dict[str, Any]:
    """A profile as engines write it, for this machine and a bounding set (setupSeccomp in seccomp_linux.go there)."""
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
