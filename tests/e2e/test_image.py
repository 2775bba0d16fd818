"""hpk.sif, as an ordinary user of a site finds it."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from hpk.host import pack
from tests import cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

SIF = "image-under-test.sif"
PYTHON = "python3.13 -IS"


@pytest.fixture(scope="module")
def image() -> Iterator[None]:
    """The image that this checkout builds, in alice's home; HPK itself need not run."""
    for command in (["scripts/build-image.sh"], ["tests/site/site", "up"]):
        subprocess.run(command, cwd=cluster.ROOT, check=True, stdin=subprocess.DEVNULL)
    cluster.run("sh", "-c", f"cat > {SIF}", stdin=cluster.IMAGE.read_bytes())
    yield
    cluster.run("rm", "-f", SIF)


def inside(command: str, *options: str) -> str:
    """What a line of shell prints inside the image."""
    done = cluster.run("apptainer", "exec", "--containall", *options, SIF, "sh", "-c", command)
    return done.stdout.decode().strip()


def python(program: str) -> str:
    """What a Python program prints inside the image."""
    return inside(f"{PYTHON} -c {shlex.quote(program)}")


def test_it_is_small_enough_to_carry(image: None) -> None:
    """400 MiB at most."""
    assert cluster.IMAGE.stat().st_size <= 400 << 20


def test_its_python_is_the_one_that_was_promised(image: None) -> None:
    """Python 3.13, and nothing of the user's or of Debian's on its path."""
    assert python("import sys; print(sys.version_info[:2], sys.flags.isolated)") == "(3, 13) 1"


@pytest.mark.parametrize(
    "command",
    [
        "apptainer --version",
        "coredns --version",
        "crun --root /tmp/crun --version",
        "etcd --version",
        "fuse-overlayfs --version",
        "hpk --help",
        "ip -V",
        "kube-apiserver --version",
        "kube-controller-manager --version",
        "kubectl version --client",
        "mksquashfs -version",
        "nft --version",
        "ps --version",
        "unshare --version",
    ],
)
def test_a_program_runs_as_an_ordinary_user(image: None, command: str) -> None:
    """Each program that HPK starts is there with all its libraries."""
    assert inside(command)


@pytest.mark.parametrize("program", ["fusermount3", "newgidmap", "newuidmap", "pasta", "sqfstar", "squashfuse_ll"])
def test_a_program_without_a_version_is_there(image: None, program: str) -> None:
    """These print none, or lose it on its way into a pipe; all their libraries are found."""
    assert "not found" not in inside(f'ldd "$(command -v {program})"')


def test_no_file_gives_rights(image: None) -> None:
    """No setuid and no setgid bit."""
    assert inside("find / -xdev -type f -perm /6000 2>/dev/null || true") == ""


def test_nothing_is_open_to_others(image: None) -> None:
    """Others may write only to places for temporary files."""
    found = inside("find /usr /opt /etc /var -xdev -perm -2 ! -type l ! -path /var/tmp 2>/dev/null | head")
    assert found == ""


def test_what_installs_packages_is_gone(image: None) -> None:
    """No package manager, no Perl, no manuals."""
    absent = "/usr/bin/apt /usr/bin/dpkg /usr/bin/perl /usr/share/man /usr/share/doc /var/lib/apt"
    assert inside(f"ls -d {absent} 2>/dev/null || true") == ""


def test_every_module_has_byte_code_that_is_never_checked(image: None) -> None:
    """PEP 552's unchecked hash: a copy that changed times costs no compilation at every start."""
    program = """
import importlib.util, pathlib
bad = []
for root in ("/opt/hpk/lib", "/usr/lib/python3.13"):
    for source in pathlib.Path(root).rglob("*.py"):
        cache = pathlib.Path(importlib.util.cache_from_source(str(source)))
        if not cache.exists() or cache.read_bytes()[4:8] != (1).to_bytes(4, "little"):
            bad.append(str(source))
print(bad)
"""
    assert python(program) == "[]"


def test_a_pod_s_start_reads_one_file(image: None) -> None:
    """The modules that the agent imports, those of the link included, are packed."""
    program = """
import sys
sys.path.append("/opt/hpk/lib")
from hpk.agent import modules
modules.install(modules.path("/opt/hpk/lib"))
import hpk.agent.main, hpk.agent.loop, hpk.link.client
loaders = {type(object.__getattribute__(sys.modules[name], "__spec__").loader).__name__
    for name in ("asyncio", "hpk.agent.loop", "hpk.agent.main", "grpc", "hpk.link.client")}
print(loaders)
"""
    assert python(program) == "{'Finder'}"


def test_every_module_of_the_program_is_importable(image: None) -> None:
    """With what is in the image and nothing else."""
    program = """
import importlib, pkgutil, sys
sys.path.insert(0, "/opt/hpk/lib")
import hpk
names = [m.name for m in pkgutil.walk_packages(hpk.__path__, "hpk.") if not m.name.endswith("__main__")]
for name in names:
    importlib.import_module(name)
print(len(names) > 20)
"""
    assert python(program) == "True"


def test_binds_find_their_places(image: None) -> None:
    """A place that is missing would cost Apptainer an overlay at every start."""
    places = {"pod", "images", "endpoint", "scratch", "host", "gateway"}
    assert set(inside("ls /run/hpk").split()) >= places


def test_the_installable_files_are_those_of_the_tree(image: None) -> None:
    """`hpk install` writes what this checkout has."""
    for name in ("hpk", "hpk.sbatch"):
        assert inside(f"cat /opt/hpk/share/{name}") == (cluster.ROOT / "scripts" / name).read_text().strip()


def test_the_hosts_programs_are_those_of_the_tree(image: None) -> None:
    """The file that launcher and hpk.sbatch copy to hosts, and the one that `hpk doctor` makes."""
    made = hashlib.sha256(pack.archive()).hexdigest()
    assert inside("sha256sum </opt/hpk/lib/host.pyz").split()[0] == made
    program = """
import hashlib, sys
sys.path.insert(0, "/opt/hpk/lib")
from hpk.host import pack
print(hashlib.sha256(pack.archive()).hexdigest())
"""
    assert python(program) == made


def test_its_own_apptainer_nests(image: None) -> None:
    """Inside the sandbox that a pod's job starts, a second container starts without any privilege."""
    nested = inside("apptainer exec /mnt/x.sif echo nested", "--fakeroot", "-B", "/dev/fuse", "-B", f"{SIF}:/mnt/x.sif")
    assert nested == "nested"


def test_run_is_the_command(image: None) -> None:
    """`apptainer run hpk.sif ARGUMENTS` is `hpk ARGUMENTS`."""
    assert "install" in cluster.run("apptainer", "run", "--containall", SIF, "--help").stdout.decode()
