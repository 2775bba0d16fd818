"""What runs on the host can be read by what a host has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

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
