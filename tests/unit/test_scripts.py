"""What runs on the host can be read by what a host has."""

from __future__ import annotations

import ast
import contextlib
import csv
import importlib.machinery
import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

from tests import waiting

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[2]


def test_the_launcher_is_python_3_6() -> None:
    """No newer syntax, and nothing beyond the standard library."""
    tree = ast.parse((ROOT / "scripts/hpk").read_text(), feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


def test_the_launcher_is_shell_too(tmp_path: Path) -> None:
    """Where there is no Python the shell part says so instead of a riddle."""
    text = (ROOT / "scripts/hpk").read_text().replace("/usr/", "/nowhere/")
    (tmp_path / "hpk").write_text(text)
    done = subprocess.run(
        ["/bin/sh", str(tmp_path / "hpk")], env={"PATH": "/nowhere"}, capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == b"hpk: there is no Python 3.6 or newer on this host; the gateway to Slurm needs one\n"


def test_the_launcher_names_what_is_missing(tmp_path: Path) -> None:
    """Without an image the user reads where it should be."""
    done = subprocess.run(
        [str(ROOT / "scripts/hpk"), "status"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"there is no image at {tmp_path}/.hpk/hpk.sif".encode() in done.stderr


def test_the_sbatch_script_is_bash() -> None:
    """It parses, and its directives stand before the first command, where sbatch reads them."""
    script = ROOT / "scripts/hpk.sbatch"
    subprocess.run(["/bin/bash", "-n", str(script)], check=True)
    lines = script.read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") or not line for line in lines[: last + 1])
    assert any(re.match(r"#SBATCH --signal=B:TERM@", line) for line in lines)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_build_leaves_nothing_among_temporary_files(tmp_path: Path) -> None:
    """Nor anything in the copy of the Debian layer in which it works."""
    for directory in ("base/proc", "base/dev", "cache", "temporary"):
        (tmp_path / directory).mkdir(parents=True)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "HPK_CACHE": str(tmp_path / "cache")}
    script, base = ROOT / "scripts/build-image.sh", tmp_path / "base"
    subprocess.run([script, "--in-namespace", "in_namespace", "mount_debian", base], env=environment, check=True)
    assert list((tmp_path / "temporary").iterdir()) == []
    assert sorted(path.name for path in base.rglob("*")) == ["dev", "proc"]


@pytest.fixture
def launcher() -> ModuleType:
    """The launcher's functions."""
    loader = importlib.machinery.SourceFileLoader("launcher", str(ROOT / "scripts/hpk"))
    spec = importlib.util.spec_from_loader("launcher", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def test_the_launcher_shows_the_hosts_top_level_directories(launcher: ModuleType, tmp_path: Path) -> None:
    """All that are there, but those that the image has itself, also by another name, and those that none may enter."""
    for name in ("data", "home", "tmp", "usr", "usr/lib32", "etc", "opt"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "lib32").symlink_to("usr/lib32")
    (tmp_path / "scratch").symlink_to("data")
    (tmp_path / "gone").symlink_to("nowhere")
    assert launcher.shown(str(tmp_path)) == [str(tmp_path / name) for name in ("data", "home", "scratch", "tmp")]


def test_a_file_system_that_hangs_is_not_shown(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many that nobody asked for must not keep every command waiting."""
    hangs = threading.Event()
    real = os.path.isdir
    monkeypatch.setattr("os.path.isdir", lambda path: hangs.wait(60) if path == "/hangs" else real(path))
    times = iter((0.0, 0.0, 60.0))  # when it hangs for longer than is waited for it, the other has answered
    monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert launcher.answers(["/tmp", "/hangs"], seconds=60) == ["/tmp"]
    hangs.set()


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["apply", "-f", "/etc/hostname"], ["/etc/hostname"]),
        (["create", "configmap", "x", "--from-file=key=/etc/hostname"], ["/etc/hostname"]),
        (["--kubeconfig=/usr/share/doc/x"], ["/usr/share/doc"]),
        (["-o", "jsonpath-file=/usr/share/doc"], ["/usr/share/doc"]),
        (["cp", "pod:/etc/hostname", "/usr/local/y"], ["/etc/hostname", "/usr/local"]),
        (["apply", "-f", "/usr/bin/env"], []),
        (["get", "--raw", "/api/v1/nodes"], []),
        (["exec", "p", "--", "cat", "/etc/hostname"], []),
    ],
)
def test_files_below_the_images_own_directories_are_shown(
    launcher: ModuleType, words: list[str], seen: list[str]
) -> None:
    """However an argument spells them; but nothing that would hide the program."""
    assert launcher.named(words) == seen


def test_what_is_needed_lies_over_what_is_shown(launcher: ModuleType) -> None:
    """The home may be another mount than what /home shows; it is bound once, and last."""
    options = launcher.binds(["/home/a", "/home/a/.hpk", "/data"], ["/data", "/home"])
    assert options[1::2] == ["/home", "/home/a", "/data"]


def test_a_directory_may_have_any_name(launcher: ModuleType) -> None:
    """Runs are often kept in directories that are named for a time; --bind would take its end for a target."""
    options = launcher.binds(["/scratch/2026-11-29T10:00:00", '/data/a,"b"'])
    assert options[::2] == ["--mount", "--mount"]
    assert [next(csv.reader([value])) for value in options[1::2]] == [
        ["type=bind", f"source={path}", f"destination={path}"]
        for path in ("/scratch/2026-11-29T10:00:00", '/data/a,"b"')
    ]


def test_the_container_knows_the_hosts_path(launcher: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hpk install` looks there for its own directory; in the container PATH is the image's."""
    monkeypatch.setenv("PATH", "/usr/bin:/home/alice/.local/bin")
    made = launcher.environment("socket", "state", "hpk.sif", "config")
    assert made["APPTAINERENV_USER_PATH"] == "/usr/bin:/home/alice/.local/bin"
    assert "APPTAINERENV_PATH" not in made


class Command:
    """The launcher, with an Apptainer that writes down how it was called."""

    def __init__(self, root: Path) -> None:
        self.root, self.state = root, root / "state"
        (root / "bin").mkdir()
        self.state.mkdir()
        (root / "hpk.sif").touch()
        program = root / "bin/apptainer"
        program.write_text(
            "#!/bin/bash\n"
            'case "$*" in *host.pyz*) echo "import sys; sys.stdin.read()"; exit ;; esac\n'
            f'printf "%s\\n" "$@" >{root}/told\n'
        )
        program.chmod(0o755)

    def run(self, *words: str, here: Path | str) -> list[str]:
        """Run it there; the words that Apptainer got."""
        environment = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "HOME": str(self.root),
            "HPK_STATE": str(self.state),
            "HPK_IMAGE": str(self.root / "hpk.sif"),
        }
        # The directory may have been removed.
        command = ["bash", "-c", 'cd "$1" && { [ "$1" != gone ] || rmdir "$PWD"; } && shift && exec "$@"', "bash"]
        command += [str(here), str(ROOT / "scripts/hpk"), *words]
        subprocess.run(command, cwd=self.root, env=environment, capture_output=True, check=True)
        return (self.root / "told").read_text().splitlines()


@pytest.mark.parametrize(
    ("here", "place", "is_shown"),
    [
        ("/", "/", False),
        ("/etc", "/etc", False),
        ("/usr/bin", "/", False),
        ("/var", "/var", True),
        ("gone", "/", False),
    ],
)
def test_the_working_directory_hides_nothing_of_the_image(
    tmp_path: Path, here: str, place: str, *, is_shown: bool
) -> None:
    """A service's is / often; the host's /usr/bin has another Python."""
    command = Command(tmp_path)
    (tmp_path / "gone").mkdir()
    words = command.run("kubectl", "apply", "-f", "hostname", "--from-file=x=passwd", here=here)
    assert words[words.index("--pwd") + 1] == place
    bound = [word for before, word in itertools.pairwise(words) if before == "--bind"]
    assert (here in bound[-3:]) == is_shown
    assert not {"/", "/etc", "/usr", "/usr/bin", "/etc/passwd"} & set(bound)
    assert ("/etc/hostname" in bound) == (here == "/etc")


def test_a_home_without_room_for_the_gateway_still_has_commands(tmp_path: Path) -> None:
    """It is run from /tmp then, and nothing is left there."""
    command = Command(tmp_path)
    (command.state / "lib").touch()  # no room, as far as the launcher can see
    words = command.run("status", here=tmp_path)
    assert words[-1] == "status"
    (local,) = (word for word in words if word.startswith("/tmp/hpk."))
    assert not Path(local).exists()


def test_two_commands_may_bring_the_gateway_at_once(
    launcher: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quicker one has its path in hand, and is about to start it; an older image's goes."""
    library, image, removed = tmp_path / "lib", tmp_path / "hpk.sif", list[str]()
    library.mkdir()
    image.touch()
    older = {"gateway-1-2.py", "gateway-1-3.pyz"}
    for name in older:
        (library / name).touch()
    status, unlink = image.stat(), os.unlink
    path = library / f"gateway-{status.st_mtime_ns}-{status.st_size}.pyz"

    def read(*_: object, **__: object) -> subprocess.CompletedProcess[bytes]:
        path.write_bytes(b"pass")
        return subprocess.CompletedProcess([], 0, stdout=b"pass")

    def noted(one: str) -> None:
        removed.append(Path(one).name)
        unlink(one)

    monkeypatch.setattr(subprocess, "run", read)
    monkeypatch.setattr(os, "unlink", noted)
    assert launcher.gateway_file("apptainer", str(image), str(tmp_path), str(tmp_path / "local")) == str(path)
    assert set(removed) == older
    assert list(library.iterdir()) == [path]


def test_copies_that_nothing_uses_are_swept(launcher: ModuleType, tmp_path: Path) -> None:
    """What a killed command left half, and the programs of tunnels a month ago; not what may be in use."""
    host, dead = socket.gethostname(), 4194305
    kept = {
        "gateway-2-2.pyz",
        "host-new.pyz",
        f"host-new.pyz.{host}.{os.getpid()}",
        f"gateway-2-2.pyz.elsewhere.{dead}",
        f"gateway-2-2.pyz.{host}.notes",
    }
    swept = {"gateway-1-1.pyz", "host-old.pyz", f"gateway-1-1.pyz.{host}.{dead}", f"host-old.pyz.{host}.{dead}"}
    for name in kept | swept:
        (tmp_path / name).touch()
    os.utime(tmp_path / "host-old.pyz", (0, time.time() - launcher.UNUSED_SECONDS - 1))
    launcher.sweep(str(tmp_path), str(tmp_path / "gateway-2-2.pyz"))
    assert {path.name for path in tmp_path.iterdir()} == kept


class Job:
    """A job that runs hpk.sbatch, with an Apptainer that plays the control plane."""

    def __init__(self, root: Path, *endings: str) -> None:
        self.root = root
        self.state = root / "state"
        (root / "bin").mkdir()
        (root / "hpk.sif").touch()
        (root / "endings").write_text("".join(f"{ending}\n" for ending in endings))
        # Each start does what the next line says; the gateway only waits for its input's end.
        self._program(
            "apptainer",
            """
            case "$*" in *host.pyz*) echo 'import sys; sys.stdin.read()'; exit ;; esac
            echo started >>ROOT/told
            ending=$(head -n 1 ROOT/endings)
            sed -i 1d ROOT/endings
            eval "${ending:-exit 0}"
        """,
        )
        self._program("sleep", 'echo "pause $1" >>ROOT/told')
        self._program("squeue", "echo hpk-control-plane")
        self._program("scontrol", 'echo "$*" >>ROOT/scontrol')

    def _program(self, name: str, text: str) -> None:
        path = self.root / "bin" / name
        path.write_text("#!/bin/bash\n" + textwrap.dedent(text).replace("ROOT", str(self.root)))
        path.chmod(0o755)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        environment = {
            "PATH": f"{self.root}/bin:{os.environ['PATH']}",
            "HOME": str(self.root),
            "HPK_STATE": str(self.state),
            "HPK_IMAGE": str(self.root / "hpk.sif"),
            "SLURM_JOB_ID": "7",
            "TMPDIR": str(self.root),
        }
        (self.state / "state").mkdir(parents=True)
        command = ["bash", str(ROOT / "scripts/hpk.sbatch")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    @property
    def told(self) -> list[str]:
        """What happened, in order."""
        return (self.root / "told").read_text().splitlines()


@pytest.mark.parametrize(
    "ending", ["kill -SEGV $$", "kill -BUS $$", "kill -ABRT $$", "kill -KILL $$", "exit 70", "exit 75"]
)
def test_a_control_plane_that_ends_is_started_again(tmp_path: Path, ending: str) -> None:
    """Whatever ended it, with growing pauses, until it was asked to end."""
    job = Job(tmp_path, ending, ending, "exit 0")
    done = job.run()
    assert done.returncode == 0, done.stderr
    assert job.told == ["started", "pause 1", "started", "pause 2", "started"]
    assert "starting it again in 2 s" in done.stderr


def test_what_a_start_cannot_mend_is_not_tried_again(tmp_path: Path) -> None:
    """A wrong setting, a directory that is in use: the job ends with that."""
    job = Job(tmp_path, "exit 78")
    done = job.run()
    assert done.returncode == 78
    assert job.told == ["started"]
    assert "another start would not mend this" in done.stderr


def test_a_control_plane_that_never_lived_is_given_up(tmp_path: Path) -> None:
    """Its job ends, so that whoever waits for it learns why; and `hpk status` knows."""
    job = Job(tmp_path, *["kill -SEGV $$"] * 9)
    done = job.run()
    assert done.returncode == 128 + signal.SIGSEGV
    assert job.told.count("started") == 5
    ended = json.loads((job.state / "state/ended.json").read_text())
    assert (ended["job_id"], ended["reason"]) == ("7", "it was killed by SIGSEGV")


def test_an_exit_code_above_128_is_not_always_a_signal(tmp_path: Path) -> None:
    """Apptainer ends with 255 where it cannot make the container."""
    job = Job(tmp_path, *["exit 255"] * 9)
    assert job.run().returncode == 255
    assert json.loads((job.state / "state/ended.json").read_text())["reason"] == "it ended with exit code 255"


def test_its_own_last_word_is_kept(tmp_path: Path) -> None:
    """The control plane knows better than an exit code why it ended; the next start forgets it."""
    word = f"echo said >{tmp_path}/state/state/ended.json"
    job = Job(tmp_path, f"test ! -e {tmp_path}/state/state/ended.json || exit 3; {word}; exit 75", f"{word}; exit 78")
    assert job.run().returncode == 78
    assert (job.state / "state/ended.json").read_text() == "said\n"


def test_what_a_killed_control_plane_leaves_on_the_node_goes(tmp_path: Path) -> None:
    """Before the next start: one that is killed again and again does not fill the disk with etcd's data."""
    leave = f"for place in {tmp_path}/hpk-tmp.*; do mkdir $place/hpk-etcd.x || exit 78; done; kill -KILL $$"
    look = f"! test -e {tmp_path}/hpk-tmp.*/hpk-etcd.x; exit $?"
    assert Job(tmp_path, leave, leave, look).run().returncode == 0
    assert list(tmp_path.glob("hpk-tmp.*")) == []


def test_what_a_killed_job_has_left_on_the_node_goes(tmp_path: Path) -> None:
    """With the next control plane there; what another process or another node may still use stays."""
    node = os.uname().nodename
    names = [f"{node}.{4 << 20}.aaaaaaaa", f"{node}.{os.getpid()}.bbbbbbbb", f"other.{4 << 20}.cccccccc"]
    left, *kept = (tmp_path / f"hpk-tmp.{name}" for name in [*names, f"{node}.rack1.{4 << 20}.dddddddd"])
    for directory in (left, *kept):
        (directory / "hpk-etcd.x").mkdir(parents=True)
    assert Job(tmp_path, f"while test -e {left}; do :; done").run().returncode == 0
    assert sorted(tmp_path.glob("hpk-tmp.*")) == sorted(kept)


def test_a_signal_ends_it_also_while_it_pauses(tmp_path: Path) -> None:
    """scancel must not wait for the next start."""
    job = Job(tmp_path, "exit 75", "exit 75")
    job._program("sleep", "kill -TERM $PPID; exec /bin/sleep 30")
    done = job.run()
    assert done.returncode == 75
    assert job.told == ["started"]


def test_plain_sbatch_has_its_directory_named(tmp_path: Path) -> None:
    """The job's comment says whose control plane it is, as that of `hpk up` does."""
    job = Job(tmp_path, "until test -e ROOT/scontrol; do :; done; exit 0".replace("ROOT", str(tmp_path)))
    assert job.run().returncode == 0
    assert (tmp_path / "scontrol").read_text() == f"update JobId=7 Comment=hpk-control-plane:{job.state}\n"


def test_a_home_that_sbatch_does_not_hand_on_is_found(tmp_path: Path) -> None:
    """What lasts is there too, and not in the root directory."""
    job = Job(tmp_path, f'printf %s "$APPTAINERENV_HPK_STATE" >{tmp_path}/seen; exit 0')
    job._program("getent", "echo user:x:2000:2000::ROOT:/bin/bash")
    job._program("mkdir", 'case $* in *" /.hpk") exit 1 ;; esac; exec /bin/mkdir "$@"')
    (tmp_path / ".hpk/state").mkdir(parents=True)
    environment = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "HPK_IMAGE": str(tmp_path / "hpk.sif"),
        "TMPDIR": str(tmp_path),
    }
    argv = ["bash", str(ROOT / "scripts/hpk.sbatch")]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "seen").read_text() == f"{tmp_path}/.hpk"


def test_the_settings_file_counts_where_nothing_else_is_said(tmp_path: Path) -> None:
    """The script makes and shows the directory of images, and tells the program nothing that the file says."""
    words = (
        'printf "%s\\n" "$*" "${APPTAINERENV_HPK_NETWORK-unset}" "${APPTAINERENV_HPK_IMAGES-unset}" >ROOT/seen; exit 0'
    )
    job = Job(tmp_path, words.replace("ROOT", str(tmp_path)))
    (tmp_path / "bin/apptainer").rename(tmp_path / "bin/singularity")
    job.state.mkdir()
    settings = ["  images = '~/their images' # of 'all'", 'network="host"', 'apptainer = "singularity"']
    (job.state / "config.toml").write_text("\n".join([*settings, "prelude = 'touch ~/begun'\n"]))
    done = job.run()
    assert done.returncode == 0, done.stderr
    arguments, network, images = (tmp_path / "seen").read_text().splitlines()
    assert network == "unset"
    assert images == f"{tmp_path}/their images"
    assert f"--bind {images}" in arguments
    assert Path(images).is_dir()
    assert (tmp_path / "begun").exists()


GO = """#!/bin/sh
if [ "$1" = env ]; then echo go1.26; exit; fi
[ "$CGO_ENABLED" = 0 ] || exit 2
echo "go: downloading k8s.io/api v0.37.2" >&2
while [ "$1" != -o ]; do shift; done
case $2 in *kubectl*) echo "main.go:1: a fault" >&2; exit 1 ;; esac
echo program >"$2"; chmod 755 "$2"
"""


def test_a_build_says_what_is_built_and_not_what_go_fetches(tmp_path: Path) -> None:
    """The last line stands in a stage's progress for as long as Go compiles, which may be ten minutes."""
    (tmp_path / "go").write_text(GO)
    (tmp_path / "go").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HPK_CACHE": str(tmp_path / "cache")}
    argv = [str(ROOT / "controlplane/build.sh"), str(tmp_path / "out"), "etcd", "kube-apiserver", "kubectl"]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "build: etcd, 1 of 3 (about 1.5 minutes on two cores) ...",
        "build: kube-apiserver, 2 of 3 (about 10 minutes on two cores) ...",
        "build: kubectl, 3 of 3 (about 3 minutes on two cores) ...",
        "main.go:1: a fault",
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["etcd", "kube-apiserver"]


STAGES = f". {ROOT}/scripts/progress.sh; progress_all=1"


@pytest.mark.parametrize("verbose", ["", "1"])
def test_a_stage_ends_with_the_first_command_that_fails(tmp_path: Path, verbose: str) -> None:
    """What comes after it would take a half for the whole, as the one that moves a layer to its place."""
    script = f"set -euo pipefail; {STAGES}; make() {{ mkdir new; false; mv new whole; }}; stage 1 making make"
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "HPK_VERBOSE": verbose}
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"[1/1] failed after" in done.stderr
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize(
    ("script", "code", "left"),
    [("stage 1 saying true", 0, []), ("stage 1 saying sh -c 'echo words; exit 3'", 3, ["1.log"]), ("exit 4", 4, [])],
)
def test_logs_stay_where_a_stage_has_failed(tmp_path: Path, script: str, code: int, left: list[str]) -> None:
    """Nothing else is left in the directory for temporary files, and the exit code is the script's."""
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    argv = ["bash", "-c", f"set -euo pipefail; {STAGES}; {script}"]
    done = subprocess.run(argv, env=environment, capture_output=True, check=False)
    assert done.returncode == code
    assert [path.name for path in tmp_path.glob("*/*")] == left
    assert len(list(tmp_path.iterdir())) == len(left)


@pytest.mark.parametrize(("verbose", "programs"), [("", {"sleep", "tail"}), ("1", {"sleep"})])
def test_ctrl_c_ends_a_stage_and_what_it_runs(tmp_path: Path, verbose: str, programs: set[str]) -> None:
    """All are in the terminal's process group, and have the signal."""
    script = f"set -euo pipefail; {STAGES}; stage 1 sleeping sleep 600"
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), "HPK_VERBOSE": verbose}
    argv = ["env", "--default-signal=INT", "bash", "-c", script]
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL, start_new_session=True) as running:
        shell = psutil.Process(running.pid)
        children: dict[str, psutil.Process] = {}

        def have_started() -> bool:
            with contextlib.suppress(psutil.NoSuchProcess):  # a tail that waited for its second
                found = {one.name(): one for one in shell.children(recursive=True)}
                children.clear()
                children.update(found)
            return programs <= children.keys()

        try:
            waiting.block_until(have_started)
            os.killpg(running.pid, signal.SIGINT)
            running.wait()
            psutil.wait_procs(children.values())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode in {-signal.SIGINT, 128 + signal.SIGINT}
