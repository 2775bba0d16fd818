"""The documents name code that is there: each `room/module.name`, in prose, tables and pictures, and each import."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("docs/architecture.md", "docs/glossary.md", "docs/development.md")
PACKAGES = sorted(file.parent.name for file in ROOT.glob("hpk/**/__init__.py"))
REFERENCE = re.compile(rf"(?<![\w./-])(?:{'|'.join(PACKAGES)})(?:/\w+)+(?:\.\w+)*")
"""A path from `hpk` or from a package, and perhaps a name in it.

A path that leaves out the room, such as ``boot/claim``, is found too, and leads nowhere.
"""
LOWEST = {"aiotasks", "errors", "jobdir", "missing", "records"}


def fault(reference: str) -> str:
    """Return what a reference names that does not exist; empty if it names a file, a package or a part of a module."""
    path = ROOT / "hpk" / reference.removeprefix("hpk/")
    if path.exists():
        return ""
    *folders, last = path.parts
    module, *names = last.split(".")
    file = Path(*folders, f"{module}.py")
    if not file.is_file():
        return f"{reference}: there is no {file.relative_to(ROOT)}"
    return "" if _has(_tree(file).body, names) else f"{reference}: {file.relative_to(ROOT)} has no {'.'.join(names)}"


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _has(body: list[ast.stmt], names: list[str]) -> bool:
    """Return whether the body defines the first name, and in it the next."""
    if not names:
        return True
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                inner = node.body if isinstance(node, ast.ClassDef) else []
                if name == names[0] and _has(inner, names[1:]):
                    return True
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if names == [name]:
                    return True
    return False


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_the_documents_name_is_there(document: str) -> None:
    """A reader follows a path with a finger: each step must be where the document says."""
    found = REFERENCE.findall((ROOT / document).read_text())
    assert found
    assert [text for one in found if (text := fault(one))] == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("`pods/life`, `pods/life.decide`, `hpk/app`, hpk/host/pack.py", 0),
        ("`pods/worker.Worker.sync`. `pods/life.State.GONE` `hpk/jobdir.VERSION`", 0),
        ("~/.hpk/pods/x/claim tests/unit/pods/test_life.py `pods/<uid>/spec.json`", 0),
        ("`pods/lives`", 1),
        ("pods/life.decides", 1),
        ("`pods/worker.sync`", 1),
        ("`boot/claim.take`", 1),
    ],
)
def test_a_reference_that_leads_nowhere_is_found(text: str, faults: int) -> None:
    """Paths on a disk are no references."""
    assert len([one for one in REFERENCE.findall(text) if fault(one)]) == faults


def test_the_table_of_rooms_has_every_room_and_what_it_imports() -> None:
    """With the imports for types, and without the lowest layer, which the text names once."""
    graph = grimp.build_graph("hpk", exclude_type_checking_imports=False, cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules - {"hpk"}:
        used = imports.setdefault(_room(module), set())
        used |= {_room(one) for one in graph.find_modules_directly_imported_by(module) if one != "hpk"}
    wanted = {room: used - {room} - LOWEST for room, used in imports.items()}
    assert _table((ROOT / DOCUMENTS[0]).read_text()) == wanted


def _room(module: str) -> str:
    """Return the room of a module: a package or a module of `hpk`, or one of the agent's three."""
    rooms = module.split(".")[1:3]
    is_agents = rooms[0] == "agent" and rooms[-1] in {"serve", "life", "boot"}
    return "/".join(rooms if is_agents else rooms[:1])


def _table(text: str) -> dict[str, set[str]]:
    """Return the table's rooms and imports; a row may be of several rooms, which import the same."""
    rows = re.findall(r"^\| (`hpk/[^|]*) \|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    return {
        room: set() if imported == "nothing" else set(imported.split(", "))
        for rooms, imported in rows
        for room in re.findall(r"`hpk/([\w/]+)`", rooms)
    }
