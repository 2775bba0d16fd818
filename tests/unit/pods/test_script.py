"""The job script says what the pod asks for, whole, and nothing secret."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpk import jobdir
from hpk.kube import v1
from hpk.network import sandbox
from hpk.pods import admit, script, translate
from tests import waiting

GOLDEN = Path(__file__).parent / "golden"
DIRECTORY = Path("/home/alice/.hpk/pods/0b4e")
SIF = "/home/alice/.hpk/hpk.sif"
COMMANDS = sandbox.Commands(
    start=["apptainer", "exec", "--bind", "$HPK_SCRATCH:/run/hpk/scratch", sandbox.WARM, SIF, "agent"],
    scratch='"${TMPDIR:-/tmp}/hpk-0b4e"',
    clean=["apptainer", "exec", "--fakeroot", SIF, "rm", "-rf", "$HPK_SCRATCH"],
    warmth=sandbox.Warmth(
        stamp="/home/alice/.hpk/warm/17/cygrpc.so",
        image=SIF,
        options=["--mount", "type=bind,source=/home/alice/.hpk/warm/17/python3.13,destination=/usr/bin/python3.13,ro"],
    ),
)


def admitted(one: v1.Pod, flags: dict[str, str | None] | None = None) -> admit.Admitted:
    """The pod, with the settings' flags."""
    return admit.derive(one, admit.Cluster(name="hpk", flags=flags or {}))


def pod(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> v1.Pod:
    """A pod."""
    meta = {"name": "demo", "namespace": "lab", "uid": "0b4e", "annotations": annotations or {}}
    return v1.pod({"metadata": meta, "spec": {"containers": list(containers) or [{"name": "c"}], **spec}})


PODS = {
    "plain": (pod(), ""),
    "requests": (
        pod(
            {"name": "a", "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "1Gi", "nvidia.com/gpu": 2}}}
        ),
        "",
    ),
    "flags": (
        pod(annotations={"slurm.hpk.io/flags": "-J 'my \"job\"' --comment='a b' -p gpu --time=1 --hold -c 4"}),
        "module load apptainer",
    ),
    "signal": (pod(annotations={"slurm.hpk.io/flags": "--signal=B:USR1@600"}), ""),
}


@pytest.mark.parametrize("name", PODS)
def test_scripts_are_as_they_were_read_and_agreed(name: str) -> None:
    """Each kind of pod has its golden script; a change of one is seen in review."""
    one, prelude = PODS[name]
    flags: dict[str, str | None] = {"account": "physics", "partition": "cpu"} if name == "flags" else {}
    text = script.render(admitted(one, flags), prelude=prelude, directory=DIRECTORY, commands=COMMANDS)
    assert text == (GOLDEN / f"{name}.sh").read_text()


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


def test_hosts_name_the_pod_and_its_aliases() -> None:
    """/etc/hosts is the kubelet's, with the address left to the agent."""
    one = pod(hostname="web", subdomain="sub", hostAliases=[{"ip": "192.0.2.7", "hostnames": ["foo", "bar"]}])
    text = translate.hosts(one, "cluster.local")
    assert text.startswith("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n")
    assert "\tweb.sub.lab.svc.cluster.local\tweb\n" in text
    assert text.endswith("\n# Entries added by HostAliases.\n192.0.2.7\tfoo\tbar\n")


ENVIRONMENT = {**os.environ, "SLURMD_NODENAME": "c1", "HOSTNAME": "login1"}
"""Of a job: sbatch hands on the name of the host where it was called."""


def rendered(one: v1.Pod, scratch: str, program: str) -> str:
    """The pod's script with a shell program in place of Apptainer."""
    commands = sandbox.Commands(start=["bash", "-c", program], scratch=scratch, clean=["true"])
    return script.render(admitted(one), prelude="", directory=DIRECTORY, commands=commands)


@pytest.mark.parametrize(
    ("ages", "said"),
    [((5, 5), "<a b> <$c>"), ((5, 6), ""), ((6, 5), ""), ((None, 5), ""), ((5, None), "")],
    ids=["of this hpk.sif", "of an older one", "of a newer one", "none", "no hpk.sif"],
)
def test_copies_are_bound_if_they_are_of_this_image(tmp_path: Path, ages: tuple[int | None, ...], said: str) -> None:
    """Those of another hpk.sif would have another Python; without any, the sandbox starts as well."""
    files = [tmp_path / name for name in ("a stamp", "an image")]
    for file, age in zip(files, ages, strict=True):
        if age is not None:
            file.touch()
            os.utime(file, ns=(0, age))
    print_all = ["bash", "-c", '[ $# = 0 ] || printf " <%s>" "$@" > said', "program", sandbox.WARM]
    warmth = sandbox.Warmth(stamp=str(files[0]), image=str(files[1]), options=["a b", "$c"])
    commands = sandbox.Commands(start=print_all, scratch=f"{tmp_path}/hpk-0b4e", clean=["true"], warmth=warmth)
    text = script.render(admitted(pod()), prelude="", directory=DIRECTORY, commands=commands)
    subprocess.run(["bash", "-c", text], env=ENVIRONMENT, cwd=tmp_path, check=True)
    found = tmp_path / "said"
    assert (found.read_text().strip() if found.exists() else "") == said


def test_what_killed_jobs_have_left_is_swept(tmp_path: Path) -> None:
    """Directories whose shell is gone and that nobody holds; others, and the job's own while it runs, stay.

    So does what belongs to another node: scratch may be shared, with locks that are each node's own.
    """
    gone, lives, held, foreign, *elsewhere = (
        tmp_path / name
        for name in (
            "hpk-a.c1.4194305.abcdef",
            f"hpk-b.c1.{os.getpid()}.abcdef",
            "hpk-c.c1.4194305.abcdef",
            "hpk-notes",
            "hpk-d.c2.4194305.abcdef",
            "hpk-e.rack.c1.4194305.abcdef",
        )
    )
    for path in (gone, lives, held, foreign, *elsewhere):
        (path / "images").mkdir(parents=True)
    text = rendered(
        pod(), f"{tmp_path}/hpk-0b4e", f"while [ -e {gone} ]; do sleep 0.01; done; ls {tmp_path} > {tmp_path}/seen"
    )
    lock = os.open(held, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        subprocess.run(["bash", "-c", text], check=True, timeout=100, env=ENVIRONMENT)
    finally:
        os.close(lock)
    seen = (tmp_path / "seen").read_text().split()
    assert [name for name in seen if name.startswith("hpk-0b4e.c1.")]
    left = {path.name for path in tmp_path.iterdir()} - {"seen"}
    assert left == {lives.name, held.name, foreign.name, *(path.name for path in elsewhere)}


@pytest.mark.parametrize(
    ("flags", "heard"), [("", ["TERM"]), ("--signal=USR2@300", ["USR2", "TERM"]), ("--signal=HUP", ["HUP", "TERM"])]
)
def test_a_job_s_signals_reach_the_pod_only_where_they_are_asked_for(
    tmp_path: Path, flags: str, heard: list[str]
) -> None:
    """Whatever scancel sends, the script goes on until the agent has ended, and ends as it did."""
    (tmp_path / "heard").touch()
    agent = (
        'for s in HUP USR1 USR2 ALRM TERM; do trap "echo $s >> heard" $s; done; touch claim;'
        " until grep -q TERM heard; do sleep 0.01; done; exit 7"
    )
    one = pod(annotations={"slurm.hpk.io/flags": flags})
    # A shell cannot trap what it was started with ignored, as `nohup make check` would have it; slurmstepd resets all.
    argv = ["env", "--default-signal", "bash", "-c", rendered(one, f"{tmp_path}/hpk-0b4e", agent)]
    job = subprocess.Popen(argv, env=ENVIRONMENT, start_new_session=True, cwd=tmp_path)
    try:
        waiting.block_until((tmp_path / "claim").exists)
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGALRM, signal.SIGRTMIN + 3):
            job.send_signal(number)
        for name in heard[:-1]:
            waiting.block_until(lambda name=name: name in (tmp_path / "heard").read_text())  # type: ignore[misc]
        job.terminate()
        assert job.wait(timeout=100) == 7
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)  # the stand-in for the agent as well
    assert (tmp_path / "heard").read_text().split() == heard


@pytest.mark.parametrize("moment", ["up", "pauses"])
@pytest.mark.parametrize(("number", "code"), [(jobdir.WARNING_SIGNAL, 7), (signal.SIGTERM, 255)])
def test_a_signal_before_the_agent_s_claim_is_not_lost(tmp_path: Path, moment: str, number: int, code: int) -> None:
    """While Apptainer makes the sandbox, or between two tries: the agent hears it later, or the job ends at once."""
    program = f"""
echo >> tries
if [ $(wc -l < tries) = 1 ]; then
  trap '' {number}; touch up
  until [ {moment} = pauses ] || [ -e go ]; do :; done
  exit 255
fi
trap 'touch heard' {number}
touch claim
until [ -e heard ]; do :; done
exit 7"""
    argv = ["env", "--default-signal", "bash", "-c", rendered(pod(), f"{tmp_path}/hpk-0b4e", program)]
    environment = pausing(tmp_path, "echo $1 >> pauses; exec /bin/sleep 0.2")
    job = subprocess.Popen(argv, env=environment, start_new_session=True, cwd=tmp_path)
    try:
        waiting.block_until((tmp_path / moment).exists)
        job.send_signal(number)
        (tmp_path / "go").touch()
        assert job.wait(timeout=100) == code
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert (tmp_path / "heard").exists() == (code == 7)


def test_a_warning_while_the_prelude_runs_reaches_the_agent(tmp_path: Path) -> None:
    """`module load` may take longer than Slurm waits where the time limit is a minute."""
    agent = f"trap 'touch heard' {jobdir.WARNING_SIGNAL}; touch claim; until [ -e heard ]; do sleep 0.01; done; exit 7"
    commands = sandbox.Commands(start=["bash", "-c", agent], scratch=f"{tmp_path}/hpk-0b4e", clean=["true"])
    prelude = "touch up; until [ -e go ]; do sleep 0.01; done"
    text = script.render(admitted(pod()), prelude=prelude, directory=DIRECTORY, commands=commands)
    argv = ["env", "--default-signal", "bash", "-c", text]
    job = subprocess.Popen(argv, env=ENVIRONMENT, start_new_session=True, cwd=tmp_path)
    try:
        waiting.block_until((tmp_path / "up").exists)
        job.send_signal(jobdir.WARNING_SIGNAL)
        (tmp_path / "go").touch()
        assert job.wait(timeout=100) == 7
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


def test_the_agent_is_told_how_long_the_script_has_run(tmp_path: Path) -> None:
    """Slurm counts the time limit from the job's start; loading modules in the prelude may take long."""
    tell = ["bash", "-c", 'printf "%s\\n" "$@" > said', "agent", *sandbox.FACTS]
    commands = sandbox.Commands(start=tell, scratch=f"{tmp_path}/hpk-0b4e", clean=["true"])
    prelude = "SECONDS=40"  # as if the shell had begun 40 s ago
    text = script.render(admitted(pod()), prelude=prelude, directory=DIRECTORY, commands=commands)
    subprocess.run(["bash", "-c", text], env=ENVIRONMENT, cwd=tmp_path, check=True)
    facts = dict(line.split("=", 1) for line in (tmp_path / "said").read_text().splitlines())
    assert 40 <= int(facts["script_seconds"]) < 100


@pytest.mark.parametrize(
    ("agent", "code", "tries"),
    [
        ("[ $(wc -l < tries) = 5 ] || exit 255", 0, 5),
        ("exit 255", 255, 8),
        ("touch claim; exit 255", 255, 1),
        ("exit 1", 1, 1),
    ],
    ids=["not made in time", "never made", "the agent has begun", "another end"],
)
def test_a_sandbox_that_could_not_be_made_is_tried_again(tmp_path: Path, agent: str, code: int, tries: int) -> None:
    """A busy node's CNI gives up; once an agent has claimed the pod, nothing is run twice."""
    text = rendered(pod(), f"{tmp_path}/hpk-0b4e", f"echo >> tries; {agent}")
    environment = pausing(tmp_path, "echo $1 >> pauses")
    ended = subprocess.run(["bash", "-c", text], check=False, timeout=100, env=environment, cwd=tmp_path)
    assert (ended.returncode, len((tmp_path / "tries").read_text().splitlines())) == (code, tries)
    pauses = (tmp_path / "pauses").read_text().split() if tries > 1 else []
    assert len(pauses) == tries - 1
    assert all(1 <= int(pause) <= most for pause, most in zip(pauses, (2, 4, 8, 16, 32, 32, 32), strict=False))


def test_a_job_that_is_told_to_end_does_not_wait_for_another_try(tmp_path: Path) -> None:
    """Slurm kills it after its KillWait, and then nobody removes what it has on the node."""
    text = rendered(pod(), f"{tmp_path}/hpk-0b4e", "echo >> tries; exit 255")
    argv = ["env", "--default-signal", "bash", "-c", text]
    environment = pausing(tmp_path, "echo > pausing; exec tail -f /dev/null")
    job = subprocess.Popen(argv, env=environment, cwd=tmp_path, start_new_session=True)
    try:
        waiting.block_until((tmp_path / "pausing").exists)
        job.terminate()
        assert job.wait(timeout=100) == 255
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
    assert len((tmp_path / "tries").read_text().splitlines()) == 1
    assert not list(tmp_path.glob("hpk-0b4e*"))


def pausing(tmp_path: Path, text: str) -> dict[str, str]:
    """The environment with a program of ours for `sleep`."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sleep").write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "bin/sleep").chmod(0o755)
    return {**ENVIRONMENT, "PATH": f"{tmp_path}/bin:{ENVIRONMENT['PATH']}"}
