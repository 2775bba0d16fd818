"""What became of each of Kubernetes' own tests: read from what the test program says, kept in a journal, merged.

Pure but for the journal's file. Two sources, for a run may be cut off: ginkgo's report, written at the end of a run,
and what it prints (``-v``) as each test ends.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
SUITE = "Kubernetes e2e suite"
"""The suite's own name, with which ginkgo begins the text that a focus is matched with."""

HEADER = re.compile(r"• (?:\[(?P<how>[A-Z]+)\] )?\[(?P<seconds>[0-9.]+) seconds\]")
MARK = re.compile(r" \[(?:It|(?:Just)?(?:Before|After)(?:Each|All)|DeferCleanup \((?:Each|All)\))\]")
LABELS = re.compile(r" \[[^\[\]]*\]$")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a test ended, after how long, and the first words of why."""

    state: str
    seconds: float = 0.0
    message: str = ""


def official(text: str) -> list[str]:
    """Return the names of the official list, from what ``e2e.test --list-conformance-tests`` prints."""
    return [entry["codename"] for entry in yaml.safe_load(text)]


def from_report(text: str) -> dict[str, Outcome]:
    """Return the outcome of each test that a ginkgo JSON report has ended.

    A test that the focus left out has none, nor has one that was interrupted. A panic or ginkgo's own time-out is a
    failure.
    """
    found = {}
    for suite in json.loads(text):
        for spec in suite["SpecReports"] or []:
            if spec["LeafNodeType"] == "It" and (outcome := _of_spec(spec)):
                found[" ".join([*(spec["ContainerHierarchyTexts"] or []), spec["LeafNodeText"]])] = outcome
    return found


def _of_spec(spec: dict[str, Any]) -> Outcome | None:
    message = (spec.get("Failure") or {}).get("Message", "")
    seconds = round(spec["RunTime"] / 1e9, 1)
    match spec["State"]:
        case "passed":
            return Outcome(PASSED, seconds)
        case "failed" | "panicked" | "timedout":
            return Outcome(FAILED, seconds, message)
        case "skipped" if message:
            return Outcome(SKIPPED, seconds, message)
    return None


class Printed:
    """Reads what ginkgo prints with ``-v``, a line at a time: a header with how a test ended, then its name.

    ``• [FAILED] [1.5 seconds]`` is followed by ``[sig-apps] Job [It] should end [sig-apps, Conformance]``:
    the name, a mark of the node that failed, and the labels.
    """

    def __init__(self) -> None:
        self._header: Outcome | None = None

    def read(self, line: str) -> dict[str, Outcome]:
        """Return the outcome that ends with this line; empty if none does."""
        header, self._header = self._header, None
        if header:
            return {LABELS.sub("", MARK.sub("", line.strip())): header}
        if found := HEADER.fullmatch(line.strip()):
            state = {None: PASSED, "FAILED": FAILED, "PANICKED": FAILED, "TIMEDOUT": FAILED}.get(found["how"], "")
            self._header = Outcome(state, float(found["seconds"])) if state else None
        return {}


def pending(names: list[str], outcomes: dict[str, Outcome]) -> list[str]:
    """Return the names that have no outcome yet."""
    return [name for name in names if name not in outcomes]


def focus(names: list[str]) -> str:
    """Return a regular expression for ginkgo's ``--focus`` that matches these tests and no others."""
    return f"^{SUITE} (?:{'|'.join(map(_quoted, names))})$"


def _quoted(name: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", name)


class Journal:
    """A file of outcomes, a line each, so that a run that is cut off can be gone on with; the last word counts."""

    def __init__(self, path: Path, *, subject: dict[str, str]) -> None:
        """Open the journal of `subject` (commit and profile); what an earlier one says of another is dropped."""
        self._path = path
        self.outcomes: dict[str, Outcome] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        if lines and _read(lines[0]) == subject:
            for entry in map(_read, lines[1:]):
                if entry:
                    name = entry.pop("name")
                    self.outcomes[name] = Outcome(**entry)
            path.write_text("".join(f"{line}\n" for line in lines if _read(line)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(subject) + "\n")

    def add(self, outcomes: dict[str, Outcome]) -> None:
        """Write down further outcomes."""
        self.outcomes |= outcomes
        with self._path.open("a") as file:
            for name, outcome in outcomes.items():
                file.write(json.dumps({"name": name, **dataclasses.asdict(outcome)}) + "\n")


def _read(line: str) -> dict[str, Any]:
    """Return a line's entry; empty if it is torn."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return {}
    return entry
