"""The black-box cases that this program must pass by now, run on the cluster as a user would."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TypeGuard

import pytest

from tests import cluster

pytestmark = pytest.mark.cluster

CASES = cluster.ROOT.parent / "shared/cases"
MENDED = Path(__file__).parent / "cases"
"""Cases that are mistaken as they were written; each says in what."""
EXPECTED = Path(__file__).parent / "cases.txt"
"""A name a line: the cases that pass; the rest need what is not built yet."""
EXCUSED = Path(__file__).parent / f"cases-{cluster.PROFILE.name}.txt"
"""Those of them that need what a site of this profile has not, if any; each with the reason."""


def expected() -> list[str]:
    """The cases that must pass on this site."""
    excused = {line.split()[0] for line in _lines(EXCUSED)} if EXCUSED.exists() else set()
    return [line for line in _lines(EXPECTED) if line not in excused]


def _file(name: str) -> Path:
    return MENDED / name if (MENDED / name).exists() else CASES / name


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def verdicts(hpk: None, request: pytest.FixtureRequest) -> dict[str, str]:
    """The lines of each case that was asked for, by its name; they run together."""
    names = [item.callspec.params["name"] for item in request.session.items if _is_case(item)]
    files = [str(_file(f"{name}.yaml")) for name in names]
    done = subprocess.run([str(cluster.ROOT / "scripts/cases.sh"), *files], capture_output=True, text=True, check=False)
    blocks = re.split(r"^(?=(?:ok|FAIL|skip) )", done.stdout, flags=re.MULTILINE)
    found = {block.split()[1]: block for block in blocks if block.startswith(("ok ", "FAIL ", "skip "))}
    assert found, done.stdout + done.stderr
    return found


def _is_case(item: pytest.Item) -> TypeGuard[pytest.Function]:
    return isinstance(item, pytest.Function) and item.originalname == test_case.__name__


@pytest.mark.parametrize("name", expected())
def test_case(name: str, verdicts: dict[str, str]) -> None:
    """The case's own promise holds."""
    assert verdicts.get(name, "not run").startswith("ok "), verdicts.get(name, "not run")
