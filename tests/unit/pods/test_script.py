"""The job script says what the pod asks for, whole, and nothing secret."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hpk.kube import v1
from hpk.pods import script, translate

GOLDEN = Path(__file__).parent / "golden"
DIRECTORY = Path("/home/alice/.hpk/pods/0b4e")
COMMANDS = SimpleNamespace(
    start=["apptainer", "exec", "--bind", "$HPK_SCRATCH:/run/hpk/scratch", "/home/alice/.hpk/hpk.sif", "agent"],
    scratch='"${TMPDIR:-/tmp}/hpk-0b4e"',
    clean=["apptainer", "exec", "--fakeroot", "/home/alice/.hpk/hpk.sif", "rm", "-rf", "$HPK_SCRATCH"],
)


def site(**changes: Any) -> translate.Site:
    """A site."""
    values: dict[str, Any] = {
        "cluster_domain": "cluster.local",
        "api_host": "10.0.0.1",
        "api_port": 6443,
        "images": Path("/home/alice/.hpk/images"),
        "prelude": "",
        "settings_flags": {},
        "network": "flannel",
    }
    return translate.Site(**{**values, **changes})


def pod(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> v1.Pod:
    """A pod."""
    meta = {"name": "demo", "namespace": "lab", "uid": "0b4e", "annotations": annotations or {}}
    return v1.pod({"metadata": meta, "spec": {"containers": list(containers) or [{"name": "c"}], **spec}})


PODS = {
    "plain": (pod(), site(), None),
    "requests": (
        pod(
            {"name": "a", "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi", "nvidia.com/gpu": 2}}}
        ),
        site(),
        None,
    ),
    "flags": (
        pod(annotations={"slurm.hpk.io/flags": "-J 'my \"job\"' --comment='a b' -p gpu --time=1 --hold -c 4"}),
        site(settings_flags={"account": "physics", "partition": "cpu"}, prelude="module load apptainer"),
        60,
    ),
}


@pytest.mark.parametrize("name", PODS)
def test_scripts_are_as_they_were_read_and_agreed(name: str) -> None:
    """Each kind of pod has its golden script; a change of one is seen in review."""
    one, where, limit = PODS[name]
    plan = translate.job_plan(one, site=where, directory=DIRECTORY, time_limit=limit, commands=COMMANDS)  # type: ignore[arg-type]
    assert script.render(plan) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("main", "#SBATCH --x=main"),
        ("a b", '#SBATCH --x="a b"'),
        ('say "hi" \\', '#SBATCH --x="say \\"hi\\" \\\\"'),
        ("$HOME `id`", '#SBATCH --x="$HOME `id`"'),
        (None, "#SBATCH --x"),
    ],
)
def test_directives_are_quoted_as_sbatch_reads_them(value: str | None, line: str) -> None:
    """Sbatch's own parser knows double quotes and backslashes, and expands nothing."""
    assert script.directive("x", value) == line


def test_a_signal_is_asked_for_only_where_the_limit_leaves_room() -> None:
    """Slurm may warn a minute early: a job of one minute would be told to end as it starts."""
    for limit, is_asked in ((60, False), (300, True), (None, True)):
        options = translate.directives(pod(), site=site(), directory=DIRECTORY, time_limit=limit)
        assert ("signal" in options) == is_asked


def test_hosts_name_the_pod_and_its_aliases() -> None:
    """/etc/hosts is the kubelet's, with the address left to the agent."""
    one = pod(hostname="web", subdomain="sub", hostAliases=[{"ip": "192.0.2.7", "hostnames": ["foo", "bar"]}])
    text = translate.hosts(one, "cluster.local")
    assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert "\tweb.sub.lab.svc.cluster.local\tweb\n" in text
    assert text.endswith("\n# Entries added by HostAliases.\n192.0.2.7\tfoo\tbar\n")


def test_what_killed_jobs_have_left_is_swept(tmp_path: Path) -> None:
    """Directories whose shell is gone and that nobody holds; others, and the job's own while it runs, stay."""
    gone, lives, held, foreign = (
        tmp_path / name
        for name in ("hpk-a.4194305.abcdef", f"hpk-b.{os.getpid()}.abcdef", "hpk-c.4194305.abcdef", "hpk-notes")
    )
    for path in (gone, lives, held, foreign):
        (path / "images").mkdir(parents=True)
    commands = SimpleNamespace(
        start=["sh", "-c", f"while [ -e {gone} ]; do sleep 0.01; done; ls {tmp_path} > {tmp_path}/seen"],
        scratch=f"{tmp_path}/hpk-0b4e",
        clean=["true"],
    )
    plan = translate.job_plan(pod(), site=site(), directory=DIRECTORY, time_limit=None, commands=commands)  # type: ignore[arg-type]
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        subprocess.run(["bash", "-c", script.render(plan)], check=True, timeout=100)
    finally:
        os.close(lock)
    seen = (tmp_path / "seen").read_text().split()
    assert [name for name in seen if name.startswith("hpk-0b4e.")]
    left = {path.name for path in tmp_path.iterdir()} - {"seen"}
    assert left == {lives.name, held.name, foreign.name}
