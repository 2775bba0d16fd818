"""The sandbox's command, and which network mode a site can have."""

from __future__ import annotations

import csv
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from hpk import config, errors
from hpk.network import sandbox

BOX = sandbox.Sandbox(
    image="/home/a/.hpk/hpk.sif",
    network="flannel",
    pod="/home/a/.hpk/pods/u-1",
    images="/home/a/.hpk/images",
    endpoint="/home/a/.hpk/run",
)


def mounts(argv: list[str]) -> dict[str, dict[str, str]]:
    """The mounts of a command, by destination, as Apptainer reads them."""
    found = {}
    for flag, value in itertools.pairwise(argv):
        if flag == "--mount":
            (fields,) = csv.reader([value])
            pairs = dict(field.partition("=")[::2] for field in fields)
            found[pairs["destination"]] = pairs
    return found


def test_flannel_has_the_site_s_network_and_host_has_the_host_s() -> None:
    """Only the name ``fakeroot`` is allowed to a user."""
    flannel = sandbox.start(BOX)
    assert flannel[flannel.index("--network") + 1] == "fakeroot"
    assert "--net" not in sandbox.start(dataclasses.replace(BOX, network="host"))


def test_only_what_a_pod_needs_is_bound() -> None:
    """Images and endpoint read-only; the node's files only for a pod that asked for some."""
    plain = mounts(sandbox.start(BOX))
    assert "ro" in plain["/run/hpk/images"]
    assert "ro" in plain["/run/hpk/endpoint"]
    assert "ro" not in plain["/run/hpk/pod"]
    assert plain["/run/hpk/scratch"]["source"] == "$HPK_SCRATCH"
    assert "/run/hpk/host" not in plain
    assert "/run/hpk/host" in mounts(sandbox.start(dataclasses.replace(BOX, has_host=True)))


def test_paths_may_hold_anything() -> None:
    """Commas, colons and quotes reach Apptainer whole."""
    pod = '/home/a,b:c "d"/pods'
    assert mounts(sandbox.start(dataclasses.replace(BOX, pod=pod)))["/run/hpk/pod"]["source"] == pod


def test_gpus_are_offered_only_where_asked() -> None:
    """--nv warns on nodes without NVIDIA's driver."""
    assert "--nv" not in sandbox.start(BOX)
    assert "--nv" in sandbox.start(dataclasses.replace(BOX, has_gpu=True))


def plan(**changes: Any) -> Any:
    """A pod's plan, as far as its launch looks at it."""
    container = {"image_file": "/run/hpk/images/x.sqfs", "gpu": False}
    return {"uid": "u-1", "network": "flannel", "volumes": [], "containers": [container], **changes}


def commands(**changes: Any) -> sandbox.Commands:
    """The commands of a pod."""
    settings = config.Settings(state=Path("/home/a/.hpk"))
    return sandbox.Launcher(settings).commands(plan(**changes), directory="/home/a/.hpk/pods/u-1")


def test_a_host_path_or_a_sif_of_the_user_s_binds_the_node_s_files() -> None:
    """Both are reached below the node's root."""
    assert "/run/hpk/host" not in mounts(commands().start)
    assert "/run/hpk/host" in mounts(commands(volumes=[{"kind": "host_path"}]).start)
    sif = {"image_file": "/run/hpk/host/data/x.sif", "gpu": False}
    assert "/run/hpk/host" in mounts(commands(containers=[sif]).start)


def test_the_scratch_directory_is_the_pod_s_own() -> None:
    """Expanded by the job's shell, and removed with the ids that filled it."""
    made = commands()
    assert made.scratch == '"${TMPDIR:-/tmp}/hpk-u-1"'
    assert "--fakeroot" in made.clean
    assert made.clean[-2:] == ["1", "-delete"]


SITE: dict[str, Any] = {
    "apptainer": {"setuid": True, "networks": {"fakeroot": ["bridge"]}},
    "subuid": [100000, 65536],
    "subgid": [100000, 65536],
    "flannel": {"FLANNEL_SUBNET": "10.244.1.1/24"},
}


def test_auto_takes_flannel_where_everything_is_there() -> None:
    """And host where anything is missing."""
    assert sandbox.choose("auto", SITE) == "flannel"
    for key in SITE:
        assert sandbox.choose("auto", {**SITE, key: None}) == "host"


def test_a_wish_that_cannot_be_had_is_refused_by_name() -> None:
    """The text says what the site lacks."""
    assert sandbox.choose("host", SITE) == "host"
    with pytest.raises(errors.Fatal, match=r"setuid.*subordinate"):
        sandbox.choose("flannel", {**SITE, "apptainer": {"setuid": False, "networks": {}}, "subuid": None})
