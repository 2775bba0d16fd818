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
    return sandbox.SandboxCommands(settings).commands(plan(**changes), directory="/home/a/.hpk/pods/u-1")


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


OVERLAY = {**SITE, "user_namespaces": 1000, "tun": True}


def test_auto_takes_the_best_that_is_there() -> None:
    """Flannel where everything is there, else overlay, and host where the node forbids that too."""
    assert sandbox.choose("auto", OVERLAY) == "flannel"
    for key in ("flannel", "subuid", "subgid"):
        assert sandbox.choose("auto", {**OVERLAY, key: None}) == "overlay"
        for other in ("user_namespaces", "tun"):
            assert sandbox.choose("auto", {**OVERLAY, key: None, other: None}) == "host"
    assert sandbox.choose("auto", {**OVERLAY, "apptainer": None}) == "host"


def test_one_id_is_what_an_account_without_subordinate_ids_has() -> None:
    """Uids or gids alone are of no use."""
    assert not sandbox.has_one_id(SITE)
    assert sandbox.has_one_id({**SITE, "subgid": None})


HEAD = ["apptainer", "--silent", "exec"]
BINDS = {
    "/run/hpk/pod": "/home/a/.hpk/pods/u-1",
    "/run/hpk/images": "/home/a/.hpk/images",
    "/run/hpk/endpoint": "/home/a/.hpk/run",
    "/run/hpk/scratch": "$HPK_SCRATCH",
    "/dev/fuse": "/dev/fuse",
    "/dev/full": "/dev/full",
}


@pytest.mark.parametrize(
    ("network", "has_one_id", "options", "has_tun"),
    [
        (
            "flannel",
            False,
            "--fakeroot --containall --no-home --no-eval --uts --no-init --net --network fakeroot",
            False,
        ),
        ("host", False, "--fakeroot --containall --no-home --no-eval --uts --no-init", False),
        ("host", True, "--userns --containall --no-home --no-eval --no-init", False),
        ("overlay", False, "--fakeroot --containall --no-home --no-eval --uts --no-init", True),
        ("overlay", True, "--userns --containall --no-home --no-eval --no-init", True),
    ],
)
def test_each_mode_s_command_is_this_one(network: str, has_one_id: bool, options: str, has_tun: bool) -> None:  # noqa: FBT001 - a table
    """What Apptainer is asked for, word by word, and what is bound."""
    box = dataclasses.replace(BOX, network=network, has_one_id=has_one_id)
    argv = sandbox.start(box)
    first = argv.index("--mount")
    assert argv[:first] == [*HEAD, *options.split()]
    bound = {target: fields["source"] for target, fields in mounts(argv).items()}
    assert bound == {**BINDS, **({"/dev/net/tun": "/dev/net/tun"} if has_tun else {})}
    assert argv[argv.index(BOX.image) :] == [BOX.image, *sandbox.AGENT, *sandbox.FACTS, "kill_wait=30"]


def test_one_id_s_scratch_is_removed_by_its_root() -> None:
    """A directory that the pod has closed to its owner would stop the user's own find."""
    made = commands(has_one_id=True).clean
    assert "--fakeroot" not in made
    assert made[made.index("/usr/bin/unshare") :][:4] == [
        "/usr/bin/unshare",
        "--user",
        "--map-root-user",
        "/usr/bin/find",
    ]


def test_a_wish_that_cannot_be_had_is_refused_by_name() -> None:
    """The text says what the site lacks."""
    assert sandbox.choose("host", SITE) == "host"
    with pytest.raises(errors.Fatal, match="/dev/net/tun"):
        sandbox.choose("overlay", {**OVERLAY, "tun": False})
    with pytest.raises(errors.Fatal, match=r"setuid.*subordinate"):
        sandbox.choose("flannel", {**SITE, "apptainer": {"setuid": False, "networks": {}}, "subuid": None})
