"""``hpk serve`` ends with a code that says whether to start it again, whatever happens to its output."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpk import jobdir
from hpk.controlplane import ending

RUN = "import sys; sys.argv = ['hpk', 'serve']; from hpk.cli import main; sys.exit(main.main())"


@pytest.mark.parametrize("output", ["/dev/null", "/dev/full"])
def test_a_wrong_setting_is_not_started_again(tmp_path: Path, output: str) -> None:
    """Where the job's output has no room, the exit code still tells: Python's own would be 120."""
    environment = {**os.environ, "HPK_STATE": str(tmp_path), "HPK_NETWORK": "nosuch", "TMPDIR": str(tmp_path)}
    with Path(output).open("w") as file:
        command = [sys.executable, "-c", RUN]
        done = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False)
    assert done.returncode == 78
    assert "Cannot use network 'nosuch'" in (tmp_path / "hpk.log").read_text()


LIMITED = """
import pathlib, resource, sys
from hpk import errors
from hpk.cli import serve
def load():
    pathlib.Path(sys.argv[1]).write_text(repr(resource.getrlimit(resource.RLIMIT_NOFILE)))
    raise errors.Fatal("enough")
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
serve.run(load)
"""


def test_it_may_open_as_many_files_as_the_hard_limit_allows(tmp_path: Path) -> None:
    """Whatever the login shell's soft limit is, which Slurm hands on: each agent is an open file."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path / "limits")], env=environment, check=True)
    soft, hard = ast.literal_eval((tmp_path / "limits").read_text())
    assert soft == hard > 256


ENDED = """
import asyncio, pathlib, sys
from hpk import config, errors
from hpk.cli import serve
def end(_settings):
    raise errors.Retryable("etcd is away")
serve._serve = end
sys.exit(serve.run(lambda: config.Settings(state=pathlib.Path(sys.argv[1]))))
"""


def test_why_it_ended_is_written_down(tmp_path: Path) -> None:
    """For hpk status; the exit code is for hpk.sbatch."""
    state = jobdir.StateDirectory(str(tmp_path / "state"))
    jobdir.make_directory(state.control_plane)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    done = subprocess.run([sys.executable, "-c", ENDED, state.root], env=environment, check=False)
    assert done.returncode == ending.PASSING
    told = ending.told(Path(state.control_plane))
    assert told.startswith("job 7 at ")
    assert told.endswith(": etcd is away")
