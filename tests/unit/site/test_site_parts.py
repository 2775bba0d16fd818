"""The pure parts of the simulated cluster: what its files say, how its command line is read, what its images hold."""

import gzip
import io
import json
import pathlib
import runpy
import tarfile

import pytest

from tests.site.hpksite import builds, cgroups, config, images, layout, paths, registry, run, units

ROOT = pathlib.Path(__file__).resolve().parents[3]
FLANNEL = layout.PROFILES["flannel"]


def test_run_takes_everything_after_the_dashes() -> None:
    """Options end at the first `--`; a second one belongs to the command."""
    assert run.parse(["--user", "alice", "c1", "--", "a", "--", "-b"]) == ("alice", "c1", ["a", "--", "-b"])
    assert run.parse(["c1", "--user=bob", "--", "a"]) == ("bob", "c1", ["a"])


@pytest.mark.parametrize("line", ["c1 a", "c1 --", "-- a", "c1 c2 -- a", "--user -- a", "--who c1 -- a"])
def test_run_refuses_other_command_lines(line: str) -> None:
    """What is not one host and a command is a usage error."""
    with pytest.raises(run.UsageError):
        run.parse(line.split())


def test_conflist_gives_the_hosts_own_share() -> None:
    """The CNI network takes its subnet, not the gateway's address in it, and its MTU from subnet.env."""
    text = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.35.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    conflist = json.loads(config.conflist(text))
    assert conflist["name"] == "fakeroot"
    assert conflist["plugins"][0]["ipam"]["subnet"] == "10.244.35.0/24"
    assert conflist["plugins"][0]["mtu"] == 1450


def test_units_come_after_units_that_exist(tmp_path: pathlib.Path) -> None:
    """No unit waits for one that is not in the table, and none for itself, however far round."""
    (tmp_path / "index.json").write_text('{"manifests": []}')
    table = {unit.key: unit for unit in units.table(FLANNEL, images=tmp_path)}

    def depth(key: str, path: tuple[str, ...] = ()) -> int:
        assert key not in path, f"{key} waits for itself"
        return 1 + max((depth(other, (*path, key)) for other in table[key].after), default=0)

    assert max(depth(key) for key in table) > 3


def test_accounts_extend_the_root_file_system() -> None:
    """The users come after what is there; subordinate ids do not overlap."""
    base = dict.fromkeys(config.EXTENDED, "first\n")
    files = config.files(FLANNEL, layout.CONTROLLER, base=base)
    assert files["etc/passwd"][0].startswith("first\nalice:x:2000:2000::/home/alice:/bin/bash\n")
    assert files["etc/subuid"] == ("alice:100000:65536\nbob:165536:65536\n", 0o644)
    assert files["etc/slurm/slurmdbd.conf"][1] == 0o600


def test_layout_is_reproducible_and_complete(tmp_path: pathlib.Path) -> None:
    """The same image twice is the same digest; every descriptor's blob is there, with its size."""
    layer = images.Layer()
    layer.folder("/stuff")
    layer.file("/stuff/file", "text", mode=0o600, owner=1000)
    layer.whiteout("/stuff/gone")
    layer.opaque("/stuff/emptied")
    image = images.Image(layers=(layer.finished(),), config={"Cmd": ["sh"]})
    for name in ("one", "two"):
        made = images.Layout(tmp_path / name)
        made.add("some/name:1", image)
        made.finish()
    first, second = (registry.named(tmp_path / name) for name in ("one", "two"))
    assert first == second
    repository, tag, descriptor = first[0]
    assert (repository, tag) == ("some/name", "1")
    manifest = json.loads(_blob(tmp_path / "one", descriptor))
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(_blob(tmp_path / "one", manifest["layers"][0])))) as tar:
        assert tar.getnames() == [
            "stuff",
            "stuff/file",
            "stuff/.wh.gone",
            "stuff/emptied",
            "stuff/emptied/.wh..wh..opq",
        ]
        assert (tar.getmember("stuff/file").mode, tar.getmember("stuff/file").uid) == (0o600, 1000)


def test_argos_images_run_their_program_as_its_own_images_do(tmp_path: pathlib.Path) -> None:
    """The controller as a user by number, so that runAsNonRoot holds; the executor as root."""
    programs = [tmp_path / name for name in builds.ARGO]
    for program in programs:
        program.write_bytes(b"program")
    images.build_argo(tmp_path / "layout", controller=programs[0], executor=programs[1], tag="v1")
    made = {}
    for repository, tag, descriptor in registry.named(tmp_path / "layout"):
        manifest = json.loads(_blob(tmp_path / "layout", descriptor))
        config_of = json.loads(_blob(tmp_path / "layout", manifest["config"]))["config"]
        made[f"{repository}:{tag}"] = (config_of["Entrypoint"], config_of.get("User"))
    assert made == {
        "argoproj/workflow-controller:v1": (["workflow-controller"], "8737"),
        "argoproj/argoexec:v1": (["argoexec"], None),
    }


def test_one_version_of_argo_is_built_and_installed() -> None:
    """Module, binaries, image tags and the example that users apply name the same one."""
    version = builds.ARGO_TAG
    for file, mention in (
        ("controlplane/argo/go.mod", f"argo-workflows/v4 {version}"),
        ("controlplane/build.sh", f"version={version}"),
        ("examples/argo/kustomization.yaml", f"newTag: {version}"),
        ("examples/argo/controller.yaml", f"argoexec:{version}"),
    ):
        assert mention in (ROOT / file).read_text(), file


def _blob(layout_folder: pathlib.Path, descriptor: registry.Json) -> bytes:
    data: bytes = (layout_folder / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes()
    assert len(data) == descriptor["size"]
    return data


def test_sources_of_another_suite_come_from_the_machines_own(tmp_path: pathlib.Path) -> None:
    """Both of apt's formats are read; other releases, disabled entries and third parties are left out."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "# a comment\nTypes: deb deb-src\nURIs: http://mirror.test/debian\n# another\nSuites: old old-updates\n"
        "Components: main\nSigned-By: /usr/share/keyrings/k.gpg\n\n"
        "Enabled: no\nTypes: deb\nURIs: http://off.test/\nSuites: old\nComponents: main\n"
    )
    (tmp_path / "sources.list.d/other.list").write_text("deb http://third.test/apt thing main\n")
    (tmp_path / "sources.list").write_text("deb [arch=amd64] http://plain.test/debian old main contrib\n")
    lines = runpy.run_path(str(ROOT / "scripts/debian-sources.py"))["lines"]
    signed = "[signed-by=/usr/share/keyrings/k.gpg]"
    assert lines(tmp_path, own="old", suite="new", source=False) == [
        f"deb {signed} http://mirror.test/debian new main",
        f"deb {signed} http://mirror.test/debian new-updates main",
        "deb [arch=amd64] http://plain.test/debian new main",
    ]
    assert lines(tmp_path, own="old", suite="sid", source=True) == [
        f"deb-src {signed} http://mirror.test/debian sid main",
        "deb-src [arch=amd64] http://plain.test/debian sid main",
    ]


def test_only_a_bare_site_filters_and_limits(tmp_path: pathlib.Path) -> None:
    """A prepared site lets everything through; a bare one keeps the login node and compute nodes apart."""
    (tmp_path / "index.json").write_text('{"manifests": []}')
    for name, profile in layout.PROFILES.items():
        table = units.table(profile, images=tmp_path)
        assert len([unit for unit in table if unit.name == "firewall"]) == (3 if name == "bare" else 0)
        files = config.files(profile, layout.CONTROLLER, base=dict.fromkeys(config.EXTENDED, ""))
        policy, _ = files.get("etc/slurm/job_submit.lua", ("", 0))
        assert ("[2000] = 5" in policy) == (name == "bare")
    assert "dport != { 22, 6818 }" in config.firewall(layout.HOSTS[1])


def test_slurm_confines_where_there_are_cgroups() -> None:
    """Else it looks at a job's memory now and then, and an epilog ends what left the job's tree."""
    for name, profile in layout.PROFILES.items():
        files = config.files(profile, layout.CONTROLLER, base=dict.fromkeys(config.EXTENDED, ""))
        slurm, confines = files["etc/slurm/slurm.conf"][0], name == "flannel"
        assert ("ProctrackType=proctrack/cgroup" in slurm) == confines
        assert ("OverMemoryKill" in slurm) != confines
        assert ("ConstrainRAMSpace=yes" in files["etc/slurm/cgroup.conf"][0]) == confines
        assert ("pkill" in files["etc/slurm/epilog.sh"][0]) != confines
        assert files["etc/slurm/epilog.sh"][0].endswith("exit 0\n")
        assert "PropagateResourceLimits" not in slurm  # Slurm's default hands all of a shell's limits on


def test_a_cluster_removes_its_own_cgroups_only(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Innermost first, in every controller; those of a cluster that is apart stay."""
    monkeypatch.setattr(cgroups, "MACHINE", tmp_path)
    for controller in cgroups.CONTROLLERS:
        for name in ("hpk-site/c1/slurm_c1/uid_2000/job_1", "hpk-site/c2", "hpk-site-apart-x/c1"):
            (tmp_path / controller / name).mkdir(parents=True)
    monkeypatch.setattr(paths, "CGROUP", "hpk-site")
    cgroups.remove(layout.HOSTS[1])
    assert [*tmp_path.glob("*/hpk-site/c1")] == []
    assert len([*tmp_path.glob("*/hpk-site/c2")]) == len(cgroups.CONTROLLERS)
    cgroups.remove()
    assert {path.name for path in tmp_path.glob("*/*")} == {"hpk-site-apart-x"}
    cgroups.remove()
