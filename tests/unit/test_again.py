"""A test that fails is run once more, and a run is red if it fails twice or if many fail once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import again

ROOT = Path(__file__).parents[2]
ONE, TWO, THREE = (again.Test("flannel", f"tests/e2e/test_x.py::test_{name}") for name in ("one", "two", "three"))


def test_what_failed_is_known_by_its_name() -> None:
    """As pytest remembers it; a run without failures has none, whatever is remembered."""
    assert again.failures(0, {}) == []
    assert again.failures(1, {ONE.name: True, "tests/x.py::test_y[a::b c]": True}) == [
        ONE.name,
        "tests/x.py::test_y[a::b c]",
    ]


@pytest.mark.parametrize(
    ("code", "lastfailed"),
    [(1, {}), (2, {ONE.name: True}), (3, {}), (-9, {}), (137, {}), (5, {}), (1, {ONE.name: True, "tests/x.py": True})],
)
def test_a_run_that_broke_cannot_be_mended_by_running_tests_again(code: int, lastfailed: dict[str, bool]) -> None:
    """Killed, interrupted, no tests, a file that cannot be imported: that is a failure of the run."""
    with pytest.raises(ValueError, match=f"exit code {code}"):
        again.failures(code, lastfailed)


@pytest.mark.parametrize(
    ("failed", "passed", "is_red"),
    [
        ([], [], False),
        ([ONE], [ONE], False),
        ([ONE, TWO], [ONE, TWO], False),
        ([ONE], [], True),
        ([ONE, TWO], [ONE], True),
        ([ONE, TWO, THREE], [ONE, TWO, THREE], True),
    ],
)
def test_twice_red_or_many_once_is_red(failed: list[again.Test], passed: list[again.Test], is_red: bool) -> None:  # noqa: FBT001
    """One or two tests that then pass end no run; both outcomes of each are printed."""
    lines, red = again.verdict(failed, set(passed))
    assert red == is_red
    for test in failed:
        outcome = "failed, then passed" if test in passed else "failed twice"
        assert f"again: {test.name} (flannel) {outcome}" in lines


TESTS = """
import os, pathlib
def test_fine(): pass
def test_sometimes():
    mark = pathlib.Path("mark")
    was_there = mark.exists()
    mark.touch()
    assert was_there
def test_never():
    assert os.environ.get("NEVER") != "fails"
"""


@pytest.mark.parametrize(("never", "code", "outcome"), [("", 0, ""), ("fails", 1, "failed twice")])
def test_the_whole_of_it_with_pytest(tmp_path: Path, never: str, code: int, outcome: str) -> None:
    """What a run of pytest fails is noted from its cache, run again by itself, and told."""
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    environment = {"PATH": "/usr/bin:/bin", "NEVER": never, "SITE_PROFILE": "bare"}

    def call(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    def said(*argv: str) -> subprocess.CompletedProcess[str]:
        return call(sys.executable, str(ROOT / "tests/again.py"), *argv)

    pytest_argv = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    first = call(sys.executable, "-m", "pytest", "-q", "-o", "cache_dir=cache", "test_it.py")
    assert said("note", "record", str(first.returncode), "cache").returncode == 0
    noted = [json.loads(line)[1] for line in (tmp_path / "record").read_text().splitlines()]
    assert noted == [f"test_it.py::test_{name}" for name in (["sometimes", "never"] if never else ["sometimes"])]
    done = said("run", "record", *pytest_argv)
    assert done.returncode == code, done.stdout
    assert "again: test_it.py::test_sometimes (bare) failed, then passed\n" in done.stdout
    assert outcome in done.stdout
    assert "deselected" not in done.stdout


def test_a_run_without_failures_says_nothing(tmp_path: Path) -> None:
    """The last lines of `make test` are pytest's then."""
    program = [sys.executable, str(ROOT / "tests/again.py"), "run", str(tmp_path / "none"), "pytest"]
    done = subprocess.run(program, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
