"""The black-box cases that this program must pass by now, run on the cluster as a user would."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests import cluster

pytestmark = pytest.mark.cluster

CASES = cluster.ROOT.parent / "shared/cases"
EXPECTED = Path(__file__).parent / "cases.txt"
"""A name a line: the cases that pass; the rest need what is not built yet."""
NOT_BARE = Path(__file__).parent / "cases-bare.txt"
"""Those of them that need what a bare site has not; each with the reason."""


def expected() -> list[str]:
    """The cases that must pass on this site."""
    excused = {line.split()[0] for line in _lines(NOT_BARE)} if cluster.STRICT else set()
    return [line for line in _lines(EXPECTED) if line not in excused]


def _lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="session")
def verdicts(hpk: None) -> dict[str, str]:
    """The line of each expected case, by its name."""
    files = [str(CASES / f"{name}.yaml") for name in expected()]
    done = subprocess.run([str(cluster.ROOT / "scripts/cases.sh"), *files], capture_output=True, text=True, check=False)
    blocks = re.split(r"^(?=(?:ok|FAIL|skip) )", done.stdout, flags=re.MULTILINE)
    found = {block.split()[1]: block for block in blocks if block.startswith(("ok ", "FAIL ", "skip "))}
    assert found, done.stdout + done.stderr
    return found


@pytest.mark.parametrize("name", expected())
def test_case(name: str, verdicts: dict[str, str]) -> None:
    """The case's own promise holds."""
    assert verdicts.get(name, "not run").startswith("ok "), verdicts.get(name, "not run")
