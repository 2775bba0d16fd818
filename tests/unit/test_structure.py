"""What `lint-imports` does not hold: no circle of imports anywhere, and nothing that is too long to be read."""

from __future__ import annotations

import ast
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
MOST_MODULE_LINES = 400
MOST_METHODS = 20
MOST_FUNCTION_LINES = 60
REASON = "# long: "
"""Begins the comment with the reason why something is longer: docs/development.md."""


def excesses(path: str, source: str) -> dict[str, str]:
    """Return what is too long in a module and gives no reason: its name, and how long it is."""
    lines, tree = source.splitlines(), ast.parse(source)
    found: dict[str, str] = {}
    code = [node for node in tree.body if node is not _docstring(tree)]
    if len(lines) > MOST_MODULE_LINES and not _gives_reason(lines[: code[0].lineno - 1]):
        found[path] = f"{len(lines)} lines"

    def look(parent: ast.AST, prefix: str) -> None:
        for node in ast.iter_child_nodes(parent):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                look(node, prefix)
                continue
            size = _excess(node)
            if size and not _gives_reason(lines[node.lineno - 1 : node.body[0].lineno - 1]):
                found[f"{path}: {prefix}{node.name}"] = size
            look(node, f"{prefix}{node.name}.")

    look(tree, "")
    return found


def _excess(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return how long a class or function is; empty if that is not too long."""
    if isinstance(node, ast.ClassDef):
        methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return f"{len(methods)} methods" if len(methods) > MOST_METHODS else ""
    count = (node.end_lineno or node.lineno) - node.lineno + 1
    return f"{count} lines" if count > MOST_FUNCTION_LINES else ""


def _docstring(tree: ast.Module) -> ast.stmt | None:
    first = tree.body[0] if tree.body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return first if is_text else None


def _gives_reason(lines: list[str]) -> bool:
    return any(line.partition(REASON)[2].strip() for line in lines)


def circles(graph: grimp.ImportGraph) -> list[list[str]]:
    """Return the modules that import each other, directly or through others."""
    above = {module: graph.find_upstream_modules(module) for module in graph.modules}
    found = {
        frozenset({module, *(one for one in imported if module in above[one])}) for module, imported in above.items()
    }
    return sorted((sorted(circle) for circle in found if len(circle) > 1), key=lambda circle: (len(circle), circle))


def test_no_modules_import_each_other() -> None:
    """Nor for their types only: whoever reads one of them would have to know the other."""
    graph = grimp.build_graph("hpk", exclude_type_checking_imports=False, cache_dir=None)
    assert circles(graph) == []


def test_a_circle_is_found_through_others() -> None:
    """A module that only leads to it is no part of it."""
    graph = grimp.ImportGraph()
    for importer, imported in (("a", "b"), ("b", "c"), ("c", "a"), ("d", "a"), ("c", "e")):
        graph.add_import(importer=importer, imported=imported)
    assert circles(graph) == [["a", "b", "c"]]


def test_nothing_is_too_long_without_a_reason() -> None:
    """A reader keeps a screen in mind, and a class of twenty methods is several."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "hpk").rglob("*.py")):
        if "_pb2" not in file.name:  # generated
            found |= excesses(str(file.relative_to(ROOT)), file.read_text())
    assert found == {}


LONG = "    pass\n" * MOST_FUNCTION_LINES
METHODS = "    def f(self): ...\n" * (MOST_METHODS + 1)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""A."""\n' + "a = 1\n" * MOST_MODULE_LINES, {"m.py": "401 lines"}),
        ('"""A."""\n' + "a = 1\n" * (MOST_MODULE_LINES - 1), {}),
        ('"""A."""\n# long: a table\n' + "a = 1\n" * MOST_MODULE_LINES, {}),
        ("def f():\n" + LONG, {"m.py: f": "61 lines"}),
        ("def f(  # long: one case for each field\n  a,\n):\n" + LONG, {}),
        ("def f():\n" + LONG.replace("pass", "pass  # long: too late", 1), {"m.py: f": "61 lines"}),
        ("class A:\n" + METHODS, {"m.py: A": "21 methods"}),
        ("class A:  # long: the API's verbs\n" + METHODS, {}),
        ("class A:  # long: \n" + METHODS, {"m.py: A": "21 methods"}),
        ("if True:\n class A:\n  async def f():\n" + LONG, {"m.py: A.f": "61 lines"}),
    ],
)
def test_what_is_too_long_is_named_unless_it_says_why(source: str, found: dict[str, str]) -> None:
    """At the module's top, or in the lines that begin the class or function."""
    assert excesses("m.py", source) == found
