"""The life of a control plane, as a second user of the cluster sees it: install, up, status, down, scancel."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

import pytest

from tests import cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

HPK = "~/.local/bin/hpk"
# Nothing of what a user's environment may hold must reach the control plane.
ODD = "APPTAINER_BIND=/nonexistent APPTAINERENV_PATH=/bad PYTHONPATH=/bad PYTHONHOME=/bad SLURM_TIME_FORMAT=relative"
POD = f"--image={cluster.REGISTRY}/busybox:1 --restart=Never -- sh -c 'trap exit TERM; while :; do sleep 0.2; done'"


def bob(command: str, **options: Any) -> str:
    """A line of shell on the login node, as bob; its output, errors included."""
    done = cluster.run("bash", "-c", f"exec 2>&1\n{command}", user="bob", seconds=400, **options)
    return done.stdout.decode(errors="replace")


@pytest.fixture(scope="module", autouse=True)
def installed(hpk: None) -> None:
    """Bob has what one downloaded file gives."""
    image = cluster.IMAGE.read_bytes()
    digest = hashlib.sha256(image).hexdigest()
    if bob("sha256sum < ~/dist.sif || true").split()[0] != digest:
        cluster.run("bash", "-c", "cat > dist.sif", stdin=image, user="bob")
    bob(f"test ! -x {HPK} || {HPK} down; rm -rf hpk.sbatch* hpk-*.log .hpk/hpk-*.log .hpk/state .hpk/pods .kube")
    bob("apptainer run dist.sif install")
    bob("umask 077; cat > .hpk/config.toml", stdin=cluster.SETTINGS.encode())


def queued() -> list[str]:
    """Bob's jobs that are not over."""
    return bob("squeue -h -u bob -t PD,R,CG -o '%i %k'").splitlines()


def leftovers() -> str:
    """What of bob's is still on the compute nodes."""
    look = (
        "ls -d /tmp/hpk* 2>/dev/null | xargs -r stat -c '%U %n' | grep '^bob'; "
        "pgrep -u bob -a | grep -v -e grep -e bash; true"
    )
    return "".join(cluster.run("bash", "-c", look, user="bob", host=host).stdout.decode() for host in ("c1", "c2"))


def test_a_life() -> None:
    """Up, a pod, down with the pods kept, up again with the pod still there, down with everything."""
    assert "is Ready after" in bob(f"{HPK} up")
    assert bob("kubectl config current-context") == "hpk\n"
    bob("kubectl wait --for=create sa/default --timeout=300s")
    bob(f"kubectl run p {POD}; kubectl wait --for=condition=Ready pod/p --timeout=300s")
    told = bob(f"{HPK} status")
    assert "Ready (cpu " in told
    assert "Pods' jobs     1 RUNNING" in told

    assert "Left one pod's job alone" in bob(f"{HPK} down --keep-pods")
    assert len(queued()) == 1
    assert "hpk" not in bob("kubectl config get-contexts -o name")
    assert "not running" in bob(f"{HPK} status", code=3)

    bob(f"{HPK} up")
    assert "No control plane runs" in bob(f"HPK_STATE=~/other HPK_IMAGE=~/.hpk/hpk.sif {HPK} down")
    assert "is there already" in bob(f"{HPK} up")
    bob("kubectl wait --for=condition=Ready pod/p --timeout=300s")

    told = bob(f"{HPK} down")
    assert "Cancelled one pod's job" in told
    assert queued() == []
    assert "No control plane runs" in bob(f"{HPK} down")
    assert leftovers() == ""


def test_install_by_the_command_itself_knows_the_hosts_path() -> None:
    """What `which hpk` finds is not asked for."""
    assert "to your PATH" not in bob(f"PATH=$HOME/.local/bin:$PATH {HPK} install")
    assert "to your PATH" in bob(f"PATH=/usr/bin:/bin {HPK} install")


def test_kubectl_in_the_image_sees_the_users_files() -> None:
    """Wherever they are, however they are spelled: in the middle of an argument, and for writing too."""
    create = f"{HPK} kubectl create configmap c --dry-run=client"
    data = bob(
        "d=$(mktemp -d /var/tmp/XXXX); echo -n seen >$d/file; echo -n '{.data}' >$d/path;"
        f"{create} --from-file=key=$d/file --output=jsonpath-file=$d/path; rm -r $d"
    )
    assert data == '{"key":"seen"}'


def test_sbatch_from_an_odd_environment_and_scancel() -> None:
    """Plain sbatch works whatever the environment holds; scancel stops everything in order and leaves nothing."""
    job = bob(f"{ODD} sbatch --parsable hpk.sbatch").strip()
    assert f"Slurm job {job}" in bob(f"{HPK} up")
    assert bob(f"squeue -h -j {job} -o %k") == "hpk-control-plane:/home/bob/.hpk\n"
    bob(f"scancel {job}; while squeue -h -j {job} -t R,CG -o %T | grep -q .; do sleep 0.2; done")
    log = bob(f"cat hpk-{job}.log")
    assert log.index("hpk: stopping") < log.index("hpk: stopped")
    assert bob(f"stat -c %a hpk-{job}.log") == "600\n"
    assert leftovers() == ""
    bob(f"{HPK} down")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("HPK_IMAGE=/nowhere/hpk.sif", "there is no image at /nowhere/hpk.sif"),
        ("HPK_APPTAINER=nosuch", "set HPK_PRELUDE='module load NAME'"),
        ("HPK_PRELUDE=false", "HPK_PRELUDE failed: false"),
        ("HPK_NETWORK=nosuch", "Cannot use network 'nosuch'"),
    ],
)
def test_what_is_wrong_is_said(settings: str, words: str) -> None:
    """A job that cannot start the control plane ends at once, and says in its output what to change."""
    job = bob(f"{settings} sbatch --parsable hpk.sbatch").strip()
    bob(f"while squeue -h -j {job} -t PD,R,CG -o %T | grep -q .; do sleep 0.2; done")
    assert words in bob(f"cat hpk-{shlex.quote(job)}.log")
    assert leftovers() == ""


def test_up_says_what_sbatch_says() -> None:
    """Wrong options end in sbatch's own words, with what would be right."""
    assert "invalid partition specified: nosuch" in (told := bob(f"{HPK} up --partition=nosuch", code=1))
    assert "(known: gpu, main, service)" in told
