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


def expected() -> list[str]:
    """The cases that must pass."""
    lines = EXPECTED.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


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
