"""Facts become findings: each fault by name, and nothing where there is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hpk import config
from hpk.cli import findings

SETTINGS = config.Settings()
GOOD: dict[str, Any] = {
    "site": {
        "hostname": "c1",
        "user": "alice",
        "architecture": "x86_64",
        "slurm_version": "24.05.3",
        "apptainer": {"version": "1.4.5", "setuid": True, "networks": {"fakeroot": ["bridge"]}},
        "subuid": [100000, 65536],
        "subgid": [100000, 65536],
        "flannel": {"FLANNEL_MTU": "1450"},
        "fuse": True,
        "tun": True,
    },
    "limits": {"max_user_namespaces": 60000, "unprivileged_userns_clone": 1},
    "routes": [["eth0", "10.77.0.0/24"], ["cni0", "10.244.3.0/24"], ["flannel.1", "10.244.0.0/24"]],
    "shared": {"fsync_p99_seconds": 0.004, "flock": True},
    "scratch": {"path": "/tmp", "free_bytes": 100 << 30},
    "sandbox": {"address": "10.244.3.7", "seconds": 0.4},
}
NO_SETUID = {"version": "1.4.5", "setuid": False, "networks": {}}


def place(changes: dict[str, Any], **options: Any) -> findings.ExaminedHost:
    """A host that is well but for the changes: dotted names and values."""
    facts = copy.deepcopy(GOOD)
    for name, value in changes.items():
        *path, last = name.split(".")
        inner = facts
        for part in path:
            inner = inner[part]
        inner[last] = value
    return findings.ExaminedHost(where="partition main (c1)", facts=facts, architecture="x86_64", **options)


def test_a_host_that_is_well_has_one_line() -> None:
    """It says what was measured."""
    (found,) = findings.compute(place({}), SETTINGS)
    words = "Apptainer 1.4.5, a sandbox starts in 0.40 s, 107 GB in /tmp, fsync p99 4.0 ms"
    assert str(found) == f"ok      partition main (c1): {words}"
    assert findings.login(place({}), SETTINGS)[0].level == "ok"


@pytest.mark.parametrize(
    ("changes", "level", "words"),
    [
        ({"site.apptainer": None, "sandbox": {"error": "x"}}, "error", "there is no Apptainer"),
        ({"site.apptainer.version": "1.1.9"}, "error", "Apptainer 1.1.9; HPK needs 1.2"),
        ({"site.architecture": "aarch64"}, "error", "its hosts are aarch64"),
        ({"sandbox": {"error": "no space"}}, "error", "a pod's sandbox does not start: no space"),
        ({"limits.max_user_namespaces": 0}, "error", "0 user namespaces are allowed; no pod"),
        ({"limits.max_user_namespaces": 20}, "warning", "20 user namespaces are allowed; every pod needs one"),
        ({"limits.unprivileged_userns_clone": 0, "site.apptainer": NO_SETUID}, "error", "userns_clone is 0"),
        ({"site.apptainer": NO_SETUID}, "note", "Apptainer is not installed setuid"),
        ({"site.fuse": False}, "error", "/dev/fuse cannot be opened"),
        ({"site.tun": False}, "note", "/dev/net/tun cannot be opened"),
        ({"site.subuid": None}, "warning", "alice has no subordinate ids in /etc/subuid"),
        ({"site.subgid": [1, 1000]}, "warning", "alice has 1000 subordinate ids in /etc/subgid"),
        ({"site.flannel": None}, "note", "pods share their node's network"),
        ({"site.subgid": None, "site.user_namespaces": 9}, "note", "pods can connect out, but cannot be reached"),
        ({"scratch": {"path": "/local", "error": "Permission denied"}}, "error", "cannot write to /local: Permission"),
        ({"scratch.free_bytes": 1 << 30}, "warning", "1.1 GB are free in /tmp"),
        ({"shared": {"error": "/home: Read-only file system"}}, "error", "Read-only file system"),
        ({"shared.flock": False}, "note", "cannot be locked (flock); etcd runs on its node's disk"),
        ({"shared.reach": "host"}, "note", "hold on this host only; etcd runs on its node's disk"),
        ({"shared.reach": "unknown"}, "note", "may hold on this host only; etcd runs on its node's disk"),
        ({"limits.open_files": 1024}, "warning", "a process may open 1024 files"),
        ({"shared.fsync_p99_seconds": 0.25}, "note", "takes 250 ms (p99); etcd runs on its node's disk"),
        ({"routes": [["eth1", "10.96.5.0/24"]]}, "warning", "10.96.5.0/24 by eth1 overlaps service_cidr 10.96.0.0/16"),
        ({"routes": [["eth1", "10.0.0.0/8"]]}, "warning", "overlaps pod_cidr 10.244.0.0/16"),
    ],
)
def test_each_fault_is_named(changes: dict[str, Any], level: str, words: str) -> None:
    """What, why, who can mend it, and how; and none of them hides in an "ok"."""
    found = findings.compute(place(changes), SETTINGS)
    (one,) = [one for one in found if words in str(one)]
    assert one.level == level
    assert all((one.where, one.what, one.why, one.who, one.how))
    assert "\n" not in str(one)
    assert not [one for one in found if one.level == "ok"]


def test_what_places_lack_alike_is_told_once() -> None:
    """A site of twenty partitions has one line for each fault; each place that is well has its own."""
    lacks = [
        findings.Finding(level="error", where=f"partition {name}", what="no FUSE", who="your site", how="load it")
        for name in ("cpu (c1)", "gpu (g1)")
    ]
    fine = [findings.Finding(level="ok", where=name, what="Apptainer 1.4") for name in ("login host", "partition a")]
    assert findings.told([*fine, *lacks]) == [
        "ok      login host: Apptainer 1.4",
        "ok      partition a: Apptainer 1.4",
        "error   partition cpu (c1), partition gpu (g1): no FUSE -> your site: load it",
    ]


def test_the_login_node_may_have_no_kubectl() -> None:
    """There is another one."""
    (found,) = findings.login(place({"site.kubectl": None}), SETTINGS)
    assert (found.level, found.how) == ("note", "use hpk kubectl")


def test_a_registry_that_only_the_login_node_reaches_is_named() -> None:
    """Where neither does, HPK knows nothing better."""
    one = place(
        {"unreachable": {"reg:5000": "no answer in 3 s", "other:443": "no answer in 3 s"}}, reached=("reg:5000",)
    )
    (found,) = findings.compute(one, SETTINGS)
    assert "no connection to the registry reg:5000: no answer in 3 s" in str(found)
    assert "hpk pull IMAGE on the login host" in found.how


def test_clocks_are_compared() -> None:
    """A minute is too much in either direction; a second is nobody's fault."""
    assert "60 s ahead of" in str(findings.compute(place({}, skew_seconds=60), SETTINGS)[0])
    assert "60 s behind" in str(findings.compute(place({}, skew_seconds=-60), SETTINGS)[0])
    assert findings.compute(place({}, skew_seconds=1), SETTINGS)[0].level == "ok"


def test_a_clock_that_is_hours_behind_keeps_pods_from_the_control_plane() -> None:
    """Certificates are good from an hour before they were made."""
    assert [findings.compute(place({}, skew_seconds=s), SETTINGS)[0].level for s in (-3000, 9000)] == ["warning"] * 2
    found = findings.compute(place({}, skew_seconds=-4000), SETTINGS)[0]
    assert (found.level, found.why) == ("error", "certificates are not valid there yet")


def test_what_is_asked_for_must_be_there() -> None:
    """No pod network is an error for who demands one, and nothing for who wants none."""
    without = place({"site.flannel": None})
    demanding, modest = config.Settings(network="flannel"), config.Settings(network="host")
    assert findings.compute(without, demanding)[0].level == "error"
    assert findings.compute(without, modest)[0].level == "ok"


def test_an_old_slurm_is_named() -> None:
    """By its version, or by its silence."""
    assert "Slurm 20.02.7" in str(findings.login(place({"site.slurm_version": "20.02.7"}), SETTINGS)[0])
    assert "no answer from sinfo" in str(findings.login(place({"site.slurm_version": ""}), SETTINGS)[0])
