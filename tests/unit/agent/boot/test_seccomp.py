"""The filter of RuntimeDefault."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpk.agent.boot import images, oci, runs, seccomp
from tests.unit.agent.boot import test_oci

DIGEST = "886ae167646b7e5db381ecf7c31e6de720a8e8da15cf3202fe1f67f424af2b75"


def converted(machine: str = "x86_64", *granted: str) -> dict[str, Any]:
    """The profile for a machine and capabilities."""
    return seccomp.convert(json.loads(Path(seccomp.PROFILE).read_text()), machine=machine, granted=list(granted))


def actions(made: dict[str, Any], call: str) -> list[tuple[str, int | None]]:
    """What becomes of a system call."""
    return [(rule["action"], rule.get("errnoRet")) for rule in made["syscalls"] if call in rule["names"]]


def test_the_profile_is_upstream_s() -> None:
    """Byte for byte that of go.podman.io/common v0.66.0; a change of it is a change of this line."""
    assert hashlib.sha256(Path(seccomp.PROFILE).read_bytes()).hexdigest() == DIGEST


@pytest.mark.parametrize(
    ("call", "capability"),
    [("chroot", "CAP_SYS_CHROOT"), ("bpf", "CAP_BPF"), ("kcmp", "CAP_SYS_PTRACE"), ("settimeofday", "CAP_SYS_TIME")],
)
def test_what_takes_a_capability_is_allowed_with_it_only(call: str, capability: str) -> None:
    """Else it says EPERM, as to anyone who lacks the capability."""
    assert actions(converted("x86_64"), call) == [("SCMP_ACT_ERRNO", 1)]
    assert actions(converted("x86_64", capability), call) == [("SCMP_ACT_ALLOW", None)]


def test_what_nobody_knows_does_not_exist() -> None:
    """ENOSYS, so that libraries fall back from what is newer than the profile."""
    made = converted()
    assert (made["defaultAction"], made["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", 38)
    assert actions(made, "a_call_of_tomorrow") == []
    assert actions(made, "kexec_load") == [("SCMP_ACT_ERRNO", 1)]


@pytest.mark.parametrize(
    ("machine", "architectures", "call"),
    [
        ("x86_64", ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "arch_prctl"),
        ("aarch64", ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"], "breakpoint"),
        ("riscv64", None, "riscv_flush_icache"),
    ],
)
def test_each_machine_has_its_own_calls(machine: str, architectures: list[str] | None, call: str) -> None:
    """And those of its 32-bit programs."""
    made = converted(machine)
    assert made.get("architectures") == architectures
    assert actions(made, call) == [("SCMP_ACT_ALLOW", None)]
    others = {"arch_prctl", "breakpoint", "riscv_flush_icache"} - {call}
    assert not any(actions(made, other) for other in others)


def test_arguments_are_part_of_a_rule() -> None:
    """personality is allowed for what cannot weaken a program's layout."""
    values = [rule["args"][0]["value"] for rule in converted()["syscalls"] if rule["names"] == ["personality"]]
    assert values == [0, 8, 131072, 131080, 4294967295]


def test_containerd_s_capabilities_have_a_filter_here() -> None:
    """On this kernel, unless it has none at all; nothing in it but what the OCI knows."""
    made = seccomp.runtime_default(list(oci.CAPABILITIES), available="/proc/self")
    assert {key for rule in made["syscalls"] for key in rule} == {"names", "action", "errnoRet", "args"}


def test_where_a_filter_cannot_be_no_container_runs_without(tmp_path: Path) -> None:
    """What was asked for is not left out in silence."""
    with pytest.raises(ValueError, match="no seccomp filters"):
        seccomp.runtime_default([], available=str(tmp_path / "actions_avail"))


@pytest.mark.parametrize(("profile", "has_filter"), [("RuntimeDefault", True), ("Unconfined", False)])
def test_a_container_has_the_filter_that_it_asks_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    has_filter: bool,  # noqa: FBT001
) -> None:
    """It is in what crun is told of the container."""
    monkeypatch.setattr(images, "make_writable", lambda *_: str(tmp_path / "root"))
    monkeypatch.setattr(runs, "_spawn", lambda _box, _run: None)
    monkeypatch.setattr(seccomp.runtime_default, "__kwdefaults__", {"available": "/proc/self"})
    (tmp_path / "runs").mkdir()
    nothing: dict[str, Any] = {"argv": ["true"], "env": [], "mounts": [], "gpu": False, "image_file": "i"}
    nothing |= {
        "image_offset": 0,
        "termination_message_path": "",
        "user": {"uid": 0, "gid": 0, "name": "", "groups": []},
    }
    box: Any = SimpleNamespace(
        places=SimpleNamespace(private=str(tmp_path), scratch=str(tmp_path)),
        images=SimpleNamespace(ready=lambda _file, offset: str(tmp_path / str(offset))),
        plan={"hostname": "web", "volumes": []},
        etc=lambda name: str(tmp_path / name),
        fill=str,
        has_one_id=False,
        owns_network=True,
        oom_score=0,
        pause=0,
    )
    run = runs.begin(box, test_oci.plan(seccomp_profile=profile, **nothing), 0)
    made = json.loads((Path(run.directory) / "config.json").read_text())
    assert ("seccomp" in made["linux"]) == has_filter
