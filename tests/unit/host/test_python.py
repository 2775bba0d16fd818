"""Hosts have old Pythons: the programs need no newer one than 3.6, and nothing that is not part of it."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpk import host
from hpk.host import pack
from tests.unit.host.test_tunnel import Stage, gone, heard

SOURCES = sorted(Path(str(host.__file__)).parent.glob("*.py"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_python_3_6_can_read_it(source: Path) -> None:
    """No syntax newer than 3.6, and no import that such a host lacks."""
    tree = ast.parse(source.read_text(), feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names = {name.partition(".")[0] for name in imported if not name.startswith("hpk.host")}
    assert names <= sys.stdlib_module_names
    assert not names & {"__future__", "dataclasses", "zoneinfo", "tomllib", "contextvars", "graphlib"}


@pytest.fixture(scope="module")
def oldest() -> str:
    """The oldest Python from 3.6 that there is: this one, where there is no other."""
    places = [*map(Path, os.get_exec_path()), *(Path.home() / ".pyenv/versions").glob("*/bin")]
    found = {(sys.version_info.minor, sys.executable)}
    for path in (path for place in places for path in place.glob("python3.*")):
        if (version := re.fullmatch(r"python3\.(\d+)", path.name)) and int(version[1]) >= 6:
            found.add((int(version[1]), str(path)))
    for _, python in sorted(found):
        if subprocess.run([python, "-IS", "-c", "import asyncio"], capture_output=True, check=False).returncode == 0:
            return python
    raise AssertionError


async def test_a_tunnel_runs_on_the_oldest_python(oldest: str, tmp_path: Path) -> None:
    """From the gateway to the relay, and its end."""
    stage = Stage(tmp_path)
    stage.start(oldest)
    await stage.control_plane(b"one", job_id="7")
    said = await asyncio.to_thread(subprocess.run, [oldest, "-V"], capture_output=True, check=True)
    assert said.stdout.decode() == f"Python {(await stage.slurm.site())['python']}\n"
    assert await heard(await stage.tunnel("--hold")) == b"one"
    stage.stop()
    await gone(stage.record)
    stage.servers[0].close()


def test_the_probe_runs_on_the_oldest_python(oldest: str, tmp_path: Path) -> None:
    """As in a job, where nothing is reached and no sandbox starts."""
    program, request, answer = tmp_path / "host.pyz", tmp_path / "request.json", tmp_path / "answer.json"
    program.write_bytes(pack.archive())
    wanted = {"apptainer": "nosuch", "sandbox": ["false"], "shared": str(tmp_path), "registries": ["127.0.0.1:1"]}
    request.write_text(json.dumps(wanted))
    environment = {"PATH": "/usr/bin:/bin", "HPK_PROBE_SCRATCH": str(tmp_path)}
    subprocess.run([oldest, "-IS", str(program), "probe", str(request), str(answer)], env=environment, check=True)
    found = json.loads(answer.read_text())
    assert found["unreachable"] == {"127.0.0.1:1": "Connection refused"}
    assert found["scratch"]["free_bytes"] > 0
