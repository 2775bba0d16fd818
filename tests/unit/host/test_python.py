"""Hosts have old Pythons: the programs need no newer one than 3.6, and nothing that is not part of it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from hpk import host

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
