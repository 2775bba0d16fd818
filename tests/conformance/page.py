"""docs/conformance.json and docs/conformance.md, from outcomes and the reasons that people have found. Pure."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from typing import TYPE_CHECKING, Any

from tests.conformance.outcomes import FAILED, PASSED, SKIPPED, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable

WHOSE = {
    "ours": "HPK's",
    "user namespace": "the user namespace's",
    "one node": "the one node's",
    "test image": "a test image's",
    "machine": "the test machine's",
}
UNEXPLAINED = "?"


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why tests fail (or are not run) whose names match, and whose fault it is: a key of WHOSE."""

    tests: re.Pattern[str]
    whose: str
    why: str


def reasons(text: str) -> list[Reason]:
    """Return the reasons of a TOML file, an array of tables ``reason``; a ValueError names one that is no good."""
    found = []
    for entry in tomllib.loads(text).get("reason", []):
        reason = Reason(re.compile(entry["tests"]), entry["whose"], entry["why"])
        if reason.whose not in WHOSE or not reason.why or "\n" in reason.why:
            raise ValueError(f"reason {entry}: `whose` is one of {', '.join(WHOSE)}, `why` one line")
        found.append(reason)
    return found


def images(text: str) -> list[str]:
    """Return the lines on test images of the same file."""
    return list(tomllib.loads(text).get("images", []))


def document(names: list[str], outcomes: dict[str, Outcome], **subject: str) -> dict[str, Any]:
    """Return conformance.json: every name of the list is in one of passed, failed, skipped (not run, or by itself)."""
    of: dict[str, list[str]] = {PASSED: [], FAILED: [], SKIPPED: []}
    for name in names:
        of[outcomes[name].state if name in outcomes else SKIPPED].append(name)
    return {**subject, **of}


def markdown(found: dict[str, Any], outcomes: dict[str, Outcome], why: list[Reason], lacking: list[str]) -> str:
    """Return conformance.md of a document: by area, and a line on each test that did not pass."""
    passed, failed, skipped = found[PASSED], found[FAILED], found[SKIPPED]
    not_run = [name for name in skipped if name not in outcomes]
    lines = [
        "# Conformance",
        "",
        "Kubernetes' own conformance tests, as last measured by `make conformance` on the simulated cluster.",
        "[conformance.json](conformance.json) has every name. The reasons are kept in",
        "[conformance.toml](conformance.toml).",
        "",
        f"Commit {found['commit'][:12]}, {found['date']}, profile `{found['profile']}`, Kubernetes {found['version']}:",
        f"**{len(passed)} of {len(passed) + len(failed) + len(skipped)} passed**, {len(failed)} failed,",
        f"{len(skipped) - len(not_run)} skipped themselves, {len(not_run)} were not run.",
        "",
        *_areas(found),
        "",
        "## Failed",
        "",
        *_failed(failed, why),
        *_unrun(not_run),
        *_skipped([name for name in skipped if name in outcomes], outcomes),
        "## Test images",
        "",
        "All are made here, as upstream's Dockerfiles make them (`tests/site/hpksite/testimages.py`). What they lack:",
        "",
        *(f"- {line}" for line in lacking),
    ]
    return "\n".join(lines) + "\n"


def reason_of(name: str, why: Iterable[Reason]) -> Reason | None:
    """Return the first reason that matches a name."""
    return next((reason for reason in why if reason.tests.search(name)), None)


def _areas(found: dict[str, Any]) -> list[str]:
    counts: dict[str, dict[str, int]] = {}
    for state in (PASSED, FAILED, SKIPPED):
        for name in found[state]:
            area = counts.setdefault(_area(name), dict.fromkeys((PASSED, FAILED, SKIPPED), 0))
            area[state] += 1
    rows = [
        f"| {area} | {sum(n.values())} | {' | '.join(map(str, n.values()))} |" for area, n in sorted(counts.items())
    ]
    return ["| area | tests | passed | failed | skipped or not run |", "|-|-|-|-|-|", *rows]


def _area(name: str) -> str:
    found = re.match(r"\[(sig-[^\]]+)\]", name)
    return found.group(1) if found else "other"


def _failed(failed: list[str], why: list[Reason]) -> list[str]:
    if not failed:
        return ["None.", ""]
    by: dict[str, list[str]] = {}
    for name in failed:
        reason = reason_of(name, why)
        row = f"| {_cell(name)} | {_cell(reason.why) if reason else 'not yet explained'} |"
        by.setdefault(reason.whose if reason else UNEXPLAINED, []).append(row)
    lines = []
    for whose in (*WHOSE, UNEXPLAINED):
        if rows := by.get(whose):
            title = WHOSE.get(whose, "Not yet explained")
            lines += [f"### {title[0].upper()}{title[1:]}: {len(rows)}", "", "| test | why |", "|-|-|", *rows, ""]
    return lines


def _unrun(names: list[str]) -> list[str]:
    if not names:
        return []
    return ["## Not run", "", "The run ended before these had their turn.", "", *(f"- {name}" for name in names), ""]


def _skipped(names: list[str], outcomes: dict[str, Outcome]) -> list[str]:
    if not names:
        return []
    rows = [f"| {_cell(name)} | {_cell(outcomes[name].message)} |" for name in names]
    return ["## Skipped themselves", "", "| test | its words |", "|-|-|", *rows, ""]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
