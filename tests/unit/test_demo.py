"""What `make demo` shows can be typed by its reader."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = """#!/bin/bash
# Stands for tests/site/site: runs alice's commands here, in a home of hers.
[ "$1" = run ] || exit 0
cd "$(dirname "$0")/../../home" && shift 5 && exec "$@"
"""
KUBECTL = """#!/bin/bash
case " $* " in
*" get node hpk "*) echo 'hpk   Ready' ;;
*" -f "*) [ -r "${@: -1}" ] && echo "$1 ${@: -1}" ;;
esac
"""
CLUSTER = "HPK = 'hpk'\nfingerprint = lambda: 'same'\nshell = lambda _: 'same'\n"
PROGRAMS = {"id": "echo 0", "dpkg-query": "echo installed", "scontrol": "", "squeue": "", "sbatch": ""}


@pytest.fixture
def demo(tmp_path: Path) -> list[str]:
    """The lines that the demo prints where everything is there, and `home` in the directory for temporary files."""
    tree = tmp_path / "tree"
    for name in ("scripts/demo.sh", "scripts/progress.sh"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    shutil.copytree(ROOT / "examples", tree / "examples")
    programs = {f"bin/{name}": f"#!/bin/sh\n{text}\n" for name, text in PROGRAMS.items()}
    nothing = "#!/bin/sh\n"
    files = {"tests/site/site": SITE, "bin/kubectl": KUBECTL, "tests/__init__.py": "", "tests/cluster.py": CLUSTER}
    files |= {**programs, "controlplane/build.sh": nothing, "scripts/build-image.sh": nothing}
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    (tree / "home").mkdir()
    environment = {**os.environ, "PATH": f"{tree}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run([tree / "scripts/demo.sh"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_the_commands_that_it_shows_find_their_files(demo: list[str], tmp_path: Path) -> None:
    """In the home of the user who types them; what was changed in the copies is said there and at the end."""
    home = tmp_path / "tree/home"
    typed = [shlex.split(line.partition("$ ")[2]) for line in demo if line.startswith("[alice@ctl ~]$ ")]
    files = [command[-1] for command in typed if "apply" in command]
    assert files == ["examples/hello.yaml", "examples/parallel-job.yaml"]
    for name in files:
        copy, given = (home / name).read_text(), (ROOT / name).read_text()
        assert copy.startswith(f"# A copy of HPK's {name}.  Its images are of this cluster's registry, ctl:5000.\n")
        assert copy.partition("\n")[2].replace("ctl:5000/", "") == given
        assert not re.search(r"image: (?!ctl:5000/)", copy)
        assert f"apply {name}" in demo
    assert [line for line in demo if "copies" in line and "ctl:5000/busybox:1 for busybox:1" in line]


def test_the_deployment_that_it_suggests_has_a_shell(demo: list[str]) -> None:
    """README goes on with `kubectl exec -it deploy/web -- sh`; agnhost's image has none."""
    (line,) = (line for line in demo if "create deployment" in line)
    image = re.search(r"--image=ctl:5000/(\S+)", line)
    assert image is not None
    assert image[1] in {"busybox:1", "python:3"}
    assert [line for line in demo if "kubectl exec -it deploy/web -- sh" in line]
