"""The commands, by way of a scripted Slurm."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from hpk import config, errors, jobdir, kubeconfig
from hpk.cli import cluster, down, main, slurmaccess, status, up
from hpk.controlplane import ending, ownership, placement, version
from hpk.slurm import client, runner
from tests import virtual
from tests.fakes import slurm as fake

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.virtual_time


class Stage:
    """A home, a state directory, and Slurm with a script."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings = config.Settings(state=root / ".hpk")
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("HOME", str(root))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        jobdir.make_directory(self.settings.directory.control_plane)

    def talk(self, *script: tuple[str, str | runner.CommandResult | Exception]) -> fake.Conversation:
        """Have Slurm answer by this script."""
        conversation = fake.Conversation(*script)

        @contextlib.contextmanager
        def slurm(_: config.Settings) -> Iterator[client.Slurm]:
            yield client.Slurm(conversation)

        self._monkeypatch.setattr(slurmaccess, "slurm", slurm)
        return conversation

    def see(self, *looks: cluster.Look) -> None:
        """Have the API server look like this, one after the other."""
        left = list(looks)

        async def look(*_: object, has_pods: bool = False) -> cluster.Look:
            del has_pods
            return left.pop(0) if len(left) > 1 else left[0]

        self._monkeypatch.setattr(cluster, "look", look)

    def own(self, job_id: str) -> None:
        """Write down who holds the state."""
        path = f"{self.settings.directory.control_plane}/owner.json"
        jobdir.write_json(path, {"host": "c1", "job_id": job_id, "started_at": 6.0, "job_started_at": 5.0})


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """The stage of one test."""
    return Stage(tmp_path, monkeypatch)


def row(job_id: str, state: str, *, reason: str = "None", directory: str = "/", comment: str = "") -> tuple[str, ...]:
    """A line of squeue."""
    return (job_id, state, reason, "c1", "main", "5", "N/A", directory, "(null)", "hpk", comment)


READY = cluster.Look(url="https://c1:6443", is_ready=True)


async def test_up_waits_until_ready(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """It submits, says why it waits, and ends when the node is Ready."""
    talk = stage.talk(
        ("squeue", ""),
        ("sbatch", "7\n"),
        ("squeue", fake.squeue(row("7", "PENDING", reason="Priority"))),
        ("squeue", fake.squeue(row("7", "RUNNING"))),
    )
    looks = iter([None] * 12 + [1, 2, 3])  # Slurm is asked twice meanwhile
    stage._monkeypatch.setattr(up, "_stamp", lambda _: next(looks, 4))
    stage.see(cluster.Look(problem="refused"), READY)
    assert await up.run(stage.settings, script=None, options=["-p", "long"], is_waiting=True) == 0
    told = capsys.readouterr()
    assert "Submitted the control plane as Slurm job 7" in told.out
    assert "Priority" in told.err
    assert "kubectl get nodes   (https://c1:6443)" in told.out
    submission = next(call for call in talk.calls if call.line.startswith("sbatch"))
    assert submission.line.endswith(
        f"--output={stage.settings.state}/hpk-%j.log --comment=hpk-control-plane:{stage.settings.state} -p long"
    )
    assert "#SBATCH --comment=hpk-control-plane" in submission.stdin


async def test_up_names_the_commands_that_work_here(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Where ports are filtered a plain kubectl would wait in vain."""
    stage.own("7")
    stage.talk(("squeue", fake.squeue(row("7", "RUNNING"))))
    jobdir.write_bytes(stage.settings.directory.kubeconfig, b"{}")
    stage.see(cluster.Look(url="https://127.0.0.1:1", tunnel="https://127.0.0.1:1, by srun to c1", is_ready=True))
    assert await up.run(stage.settings, script=None, options=[], is_waiting=True) == 0
    told = capsys.readouterr().out
    assert "hpk kubectl get nodes   (https://127.0.0.1:1, by srun to c1)" in told
    assert "'hpk connect' for other programs" in told


async def test_up_shows_why_the_job_ended(stage: Stage) -> None:
    """A control plane that fails is an error with the end of its output."""
    log = stage.settings.state / "out.log"
    log.write_text("first\nthere is no image\n")
    stage.talk(
        ("squeue", ""),
        ("sbatch", "7\n"),
        ("squeue", fake.squeue(row("7", "FAILED"))),
        ("scontrol show job 7", f"JobId=7 JobName=hpk\n   StdErr=/x\n   StdOut={log}\n"),
    )
    with pytest.raises(errors.Fatal, match=r"(?s)job 7 ended as FAILED\n.*there is no image") as caught:
        await up.run(stage.settings, script=None, options=[], is_waiting=True)
    assert str(log) in str(caught.value)


async def test_up_does_not_start_a_second_one(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """One that runs is waited for, not doubled; one that was asked not to wait does not."""
    stage.own("7")
    talk = stage.talk(("squeue", fake.squeue(row("7", "RUNNING"))))
    jobdir.write_bytes(stage.settings.directory.kubeconfig, b"{}")
    stage.see(READY)
    assert await up.run(stage.settings, script=None, options=[], is_waiting=True) == 0
    assert await up.run(stage.settings, script=None, options=[], is_waiting=False) == 0
    assert "is there already: Slurm job 7, running" in capsys.readouterr().out
    assert not [call for call in talk.calls if call.line.startswith("sbatch")]


async def test_up_starts_the_next_one_while_the_last_one_ends(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """A job whose programs are being ended never becomes Ready; the next one is submitted to start after it."""
    stage.own("7")
    talk = stage.talk(("squeue", fake.squeue(row("7", "COMPLETING"))), ("sbatch", "8\n"))
    assert await up.run(stage.settings, script=None, options=["-p", "long"], is_waiting=False) == 0
    assert "job 7 is ending; the next one starts after it" in capsys.readouterr().out
    submission = next(call for call in talk.calls if call.line.startswith("sbatch"))
    assert submission.line.endswith(" --dependency=afterany:7 -p long")


async def test_up_leaves_no_pile_of_outputs(stage: Stage) -> None:
    """The oldest go; other files stay."""
    for number in range(20):
        path = stage.settings.state / f"hpk-{number}.log"
        path.touch()
        os.utime(path, (number, number))
    (stage.settings.state / "mine.log").touch()
    stage.talk(("squeue", ""), ("sbatch", "99\n"))
    assert await up.run(stage.settings, script=None, options=[], is_waiting=False) == 0
    left = {path.name for path in stage.settings.state.glob("*.log")}
    assert left == {f"hpk-{number}.log" for number in range(10, 20)} | {"mine.log"}


async def test_up_hands_sbatchs_refusal_on(stage: Stage) -> None:
    """The user reads sbatch's own words."""
    stage.talk(("squeue", ""), ("sbatch", fake.refusal(fake.REFUSALS["account"])))
    with pytest.raises(errors.JobRefused, match="Invalid account"):
        await up.run(stage.settings, script=None, options=[], is_waiting=True)


async def test_down_ends_the_control_plane_first(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """TERM to the control plane's script, a wait, then the pods' jobs: else it would replace them."""
    stage.own("7")
    pod = row("8", "RUNNING", directory=f"{stage.settings.directory.pods}/u")
    talk = stage.talk(
        ("squeue", fake.squeue(row("7", "RUNNING"), pod)),
        ("scancel --signal=TERM --batch 7", ""),
        ("squeue", fake.squeue(row("7", "COMPLETING"), pod)),
        ("squeue", fake.squeue(row("7", "COMPLETED"), pod)),
        ("squeue", fake.squeue(row("7", "COMPLETED"), pod)),
        ("scancel 8", ""),
        ("squeue", ""),
    )
    jobdir.write_bytes(stage.settings.directory.kubeconfig, b"{}")
    assert await down.run(stage.settings, is_keeping_pods=False) == 0
    assert [c.line for c in talk.calls if c.line.startswith("scancel")] == [
        "scancel --signal=TERM --batch 7",
        "scancel 8",
    ]
    assert "Cancelled one pod's job" in capsys.readouterr().out
    assert not (stage.settings.state / "kubeconfig").exists()


async def test_down_that_could_not_change_the_kubeconfig_can_be_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The context goes before the file by which it is known as ours: a lock that stood there has gone by then."""
    monkeypatch.setattr(kubeconfig, "time", virtual.Time())
    stage.talk(("squeue", ""), ("squeue", ""))
    document = yaml.safe_dump({
        "clusters": [{"name": "hpk", "cluster": {"server": "https://c1:1", "certificate-authority-data": "Y2E="}}],
        "users": [{"name": "hpk", "user": {}}],
        "contexts": [{"name": "hpk", "context": {"cluster": "hpk", "user": "hpk"}}],
    }).encode()  # fmt: skip
    jobdir.write_bytes(stage.settings.directory.kubeconfig, document)
    kubeconfig.merge(document)
    lock = f"{kubeconfig.path()}.lock"
    jobdir.write_bytes(lock, b"")
    with pytest.raises(errors.Conflict):
        await down.run(stage.settings, is_keeping_pods=False)
    os.unlink(lock)  # noqa: PTH108 - in a loop that has nothing else to do
    assert await down.run(stage.settings, is_keeping_pods=False) == 0
    assert kubeconfig.current() == ("", "")
    assert "Removed the context 'hpk' from" in capsys.readouterr().out
    assert not (stage.settings.state / "kubeconfig").exists()


async def test_down_can_leave_the_pods(stage: Stage) -> None:
    """--keep-pods touches no pod's job; nothing to stop is fine."""
    talk = stage.talk(("squeue", fake.squeue(row("8", "RUNNING", directory=f"{stage.settings.directory.pods}/u"))))
    assert await down.run(stage.settings, is_keeping_pods=True) == 0
    assert len(talk.calls) == 1


async def test_down_cancels_what_queues(stage: Stage) -> None:
    """A control plane that has not started is taken out of the queue."""
    talk = stage.talk(
        ("squeue", fake.squeue(row("7", "PENDING", comment=ownership.comment(stage.settings.state)))),
        ("scancel 7", ""),
        ("squeue", ""),
    )
    assert await down.run(stage.settings, is_keeping_pods=False) == 0
    assert "scancel 7" in [call.line for call in talk.calls]


async def test_down_leaves_a_control_plane_alone_that_may_be_another_s(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another state directory, or one of plain sbatch that has not told its directory yet; the latter is named."""
    talk = stage.talk(
        (
            "squeue",
            fake.squeue(
                row("6", "RUNNING", comment=ownership.comment("/home/a/b")), row("7", "PENDING", comment=ownership.MARK)
            ),
        )
    )
    assert await down.run(stage.settings, is_keeping_pods=False) == 0
    assert [call.line for call in talk.calls if call.line.startswith("scancel")] == []
    told = capsys.readouterr().out
    assert "'scancel 7' ends it" in told
    assert "job 6" not in told


async def test_up_does_not_wait_for_another_directory_s_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of plain sbatch that looked like this directory's tells another one when it runs."""
    monkeypatch.setattr(config.Settings, "state", stage.settings.state)
    stage.talk(
        ("squeue", fake.squeue(row("7", "PENDING", comment=ownership.MARK))),
        ("squeue", fake.squeue(row("7", "RUNNING", comment=ownership.comment("/home/a/b")))),
    )
    with pytest.raises(errors.Fatal, match="another directory"):
        await up.run(stage.settings, script=None, options=[], is_waiting=True)


async def test_status_says_why_the_last_one_ended(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """By its own last word; where the home had no room for that, by Slurm's; and what is in trouble while it runs."""
    stage.own("7")
    stage.talk(
        ("squeue", fake.squeue(row("7", "FAILED", reason="NonZeroExitCode"))),
        ("squeue", ""),
        ("squeue", fake.squeue(row("8", "RUNNING", comment=ownership.comment(stage.settings.state)))),
    )
    assert await status.run(stage.settings) == 3
    assert "Last end       job 7 ended as FAILED (NonZeroExitCode); see " in capsys.readouterr().out
    ending.record(Path(stage.settings.directory.control_plane), ending.Ending(75, "no room"), job_id="7", at=0)
    assert await status.run(stage.settings) == 3
    told = capsys.readouterr().out
    assert "Last end       job 7 at " in told
    assert ": no room\n" in told
    stage.see(cluster.Look(url="u", is_ready=True, trouble="a process may open 256 files"))
    assert await status.run(stage.settings) == 0
    assert "Trouble        a process may open 256 files\n" in capsys.readouterr().out


async def test_status_of_a_control_plane_that_starts(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """Its job runs, and it has not said yet where it is: nobody is told to start one."""
    stage.own("7")
    stage.talk(("squeue", fake.squeue(row("7", "RUNNING"))))
    stage.see(cluster.Look(problem="Cannot reach the API server: no control plane runs; 'hpk up' starts it"))
    assert await status.run(stage.settings) == 1
    told = capsys.readouterr().out
    assert "API server     not running yet: the control plane is starting\n" in told
    assert "hpk up" not in told


async def test_up_refuses_what_a_newer_version_has_written(stage: Stage) -> None:
    """Before a job is submitted; both versions are named."""
    version.mark(Path(stage.settings.directory.control_plane), ours="99.1.0")
    stage.talk(("squeue", ""))
    with pytest.raises(errors.Fatal, match=r"HPK 99\.1\.0 has written it, and this is HPK \d"):
        await up.run(stage.settings, script=None, options=[], is_waiting=True)


async def test_status_has_an_exit_code(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    """3 when nothing runs, 0 when the node is Ready, 1 when it is not."""
    stage.own("7")
    stage.talk(("squeue", ""), ("squeue", fake.squeue(row("7", "RUNNING"))))
    stage.see(cluster.Look(url="u", is_ready=True, capacity={"cpu": "4"}, phases={"Running": 2}), cluster.Look(url="u"))
    assert await status.run(stage.settings) == 3
    assert await status.run(stage.settings) == 0
    assert await status.run(stage.settings) == 1
    assert "Node hpk       Ready (cpu 4)\nPods           2 Running" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SlurmUnavailable("away"), 75),
        (errors.Fatal("broken"), 1),
        (ExceptionGroup("g", [errors.Fatal("inner")]), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_have_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
) -> None:
    """Ours are one line and a code; a user sees no traceback."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert main.main() == code
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert code == 130 or told.startswith("hpk: ")


def test_other_errors_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug shows its traceback."""

    def fail(*_: object, **__: object) -> None:
        raise ExceptionGroup("g", [ValueError("bug"), errors.Fatal("ours")])

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(ExceptionGroup):
        main.main()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/home/a/.hpk/run/x"), 75, "/home/a/.hpk/run/x: Disk quota"),
        (OSError(errno.EROFS, "Read-only file system", "/home/a/.hpk"), 1, "/home/a/.hpk: Read-only"),
    ],
)
def test_what_a_file_system_refuses_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, code: int, words: str
) -> None:
    """By every command, and without a traceback; what is no file's shows one."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    assert main.main() == code
    told = capsys.readouterr().err
    assert told.startswith(f"hpk: Cannot go on: {words}")
    assert ("free some space" in told) == (code == main.RETRYABLE)
    error = ConnectionResetError(errno.ECONNRESET, "reset")
    with pytest.raises(ConnectionResetError):
        main.main()


def test_output_that_is_full_is_told(tmp_path: Path) -> None:
    """Once, and not again by the interpreter at its end."""
    code = "import sys; sys.argv = ['hpk', 'version']; from hpk.cli import main; sys.exit(main.main())"
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == main.RETRYABLE
    assert done.stderr.decode().splitlines() == [
        "hpk: Cannot go on: No space left on device" + placement.advice(OSError(errno.ENOSPC, ""))
    ]


@pytest.mark.parametrize(("words", "code"), [(["--help"], 0), (["version"], 0), (["nosuch"], 2), (["down", "-x"], 2)])
def test_usage(monkeypatch: pytest.MonkeyPatch, words: list[str], code: int) -> None:
    """Help is a success, nonsense is 2."""
    monkeypatch.setattr("sys.argv", ["hpk", *words])
    assert main.main() == code
