"""A cluster test that failed is run once more, alone, when all others are over; stdlib only, part of `make test`.

    python3 tests/again.py note RECORD CODE CACHE    what a pytest run failed, from its exit code and its cache folder
    python3 tests/again.py run RECORD PYTEST…        run those again, say what became of each; 1 is a red run

A test that fails once of two times tells of a race, which is for a person to look at; a few of them end no run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

FEW = 2
"""How many tests may fail once in a whole run."""
MANY = 8
"""More are not run again: something else is broken."""
TESTS_FAILED = 1
"""pytest's exit code if tests failed and nothing else did (pytest.ExitCode)."""


class Test(NamedTuple):
    """A test as pytest names it, and the kind of site on which it failed."""

    profile: str
    name: str


def failures(code: int, lastfailed: Mapping[str, bool]) -> list[str]:
    """Return the names of the tests that a run of pytest failed.

    Raises:
        ValueError: The run did not come to its end, or failed for another reason than its tests.
    """
    names = [name for name in lastfailed if "::" in name]  # else a file that could not be read
    if code == 0:
        return []
    if code != TESTS_FAILED or not names or len(names) != len(lastfailed):
        raise ValueError(f"pytest ended with exit code {code}, {len(names)} tests failed")
    return names


def verdict(failed: list[Test], passed: set[Test]) -> tuple[list[str], bool]:
    """Return a line for each test that failed and was run again, and whether all that makes the run red."""
    lines = [
        f"again: {test.name} ({test.profile}) failed, then passed"
        if test in passed
        else f"again: {test.name} ({test.profile}) failed twice"
        for test in failed
    ]
    if len(failed) > FEW:
        lines.append(f"again: {len(failed)} tests failed the first time; more than {FEW} is a failure")
    return lines, len(failed) > FEW or not set(failed) <= passed


def note(record: Path, code: int, cache: Path) -> None:
    """Append the tests that a run failed to the record; ValueError as `failures` has it."""
    found = cache / "v/cache/lastfailed"
    lastfailed = json.loads(found.read_text()) if found.exists() else {}
    profile = os.environ.get("SITE_PROFILE") or "flannel"
    with record.open("a") as file:
        file.writelines(json.dumps(Test(profile, name)) + "\n" for name in failures(code, lastfailed))


def run(record: Path, pytest: list[str]) -> int:
    """Run each test of the record by itself, on a cluster of its profile, and say what became of it."""
    lines = record.read_text().splitlines() if record.exists() else []
    failed = sorted({Test(*json.loads(line)) for line in lines}, reverse=True)  # the prepared site first, each once
    if len(failed) > MANY:
        print(f"again: {len(failed)} tests failed; they are not run again", flush=True)  # noqa: T201
        return 1
    passed = set()
    for test in failed:
        environment = {**os.environ, "SITE_PROFILE": test.profile}
        print(f"again: running {test.name} ({test.profile})", flush=True)  # noqa: T201
        if not subprocess.run([*pytest, test.name], env=environment, check=False).returncode:
            passed.add(test)
    said, is_red = verdict(failed, passed)
    print(*said, sep="\n", end="\n" if said else "", flush=True)  # noqa: T201
    return int(is_red)


def main() -> int:
    """Do what the command line says."""
    match sys.argv[1:]:
        case ["note", record, code, cache]:
            try:
                note(Path(record), int(code), Path(cache))
            except ValueError as error:
                print(f"again: {error}", file=sys.stderr)  # noqa: T201
                return 1
            return 0
        case ["run", record, *pytest] if pytest:
            return run(Path(record), pytest)
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
