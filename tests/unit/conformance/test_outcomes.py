"""What became of Kubernetes' tests is read from ginkgo's report and output, and survives a run that is cut off."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.conformance import outcomes
from tests.conformance.outcomes import FAILED, PASSED, SKIPPED, Journal, Outcome

if TYPE_CHECKING:
    from pathlib import Path

A, B, C = "[sig-node] Pods should be [fast] [Conformance]", "[sig-apps] Job $(x) a|b", "[sig-apps] Job $(x) a|b too"
SUBJECT = {"commit": "1234", "profile": "flannel"}


def spec(text: str, state: str, *, message: str = "", kind: str = "It") -> dict[str, Any]:
    """Return a test as ginkgo's JSON report has it, in a container named as its first word."""
    container, _, leaf = text.partition(" ")
    failure = {"Failure": {"Message": message}} if message else {}
    texts = {"ContainerHierarchyTexts": [container], "LeafNodeType": kind, "LeafNodeText": leaf}
    return {**texts, "State": state, "RunTime": 1_540_000_000, **failure}


def report(*specs: dict[str, Any]) -> str:
    """Return a report of one suite."""
    return json.dumps([{"SuitePath": "/tmp", "SpecReports": list(specs)}])


def test_the_official_list_is_read_as_the_program_prints_it() -> None:
    """YAML, whose long names are folded and quoted."""
    text = "- testname: x\n  codename: '[sig-node] Pods should be\n    [fast] [Conformance]'\n  file: a.go\n"
    assert outcomes.official(text) == [A]


def test_a_report_gives_each_test_that_ended() -> None:
    """With seconds and the reason; what the focus left out and what was interrupted have no outcome."""
    text = report(
        spec(A, "passed"),
        spec(B, "failed", message="timed out"),
        spec(C, "skipped"),
        spec("x a", "interrupted", message="Interrupted by User"),
        spec("x b", "skipped", message="needs two nodes"),
        spec("x c", "panicked", message="nil"),
        spec("suite", "passed", kind="SynchronizedBeforeSuite"),
    )
    assert outcomes.from_report(text) == {
        A: Outcome(PASSED, 1.5),
        B: Outcome(FAILED, 1.5, "timed out"),
        "x b": Outcome(SKIPPED, 1.5, "needs two nodes"),
        "x c": Outcome(FAILED, 1.5, "nil"),
    }
    assert outcomes.from_report('[{"SpecReports": null}]') == {}


def test_what_ginkgo_prints_says_which_test_ended() -> None:
    """Names stand after a header, with a mark where a failure was and labels behind; a timeline says nothing."""
    text = f"""Will run 3 of 3206 specs
SSSS
• [3.123 seconds]
{A} [sig-node, Conformance]
k8s.io/kubernetes@v1.37.2/test/e2e/common/node/pods.go:97
  I1129 util.go:414] • [9.0 seconds]
------------------------------
• [FAILED] [600.5 seconds]
[sig-apps] Job [BeforeEach] $(x) a|b [It] [sig-apps, Conformance, Slow]
• [INTERRUPTED] [1.0 seconds]
{C} [sig-apps]
S [SKIPPED] [0.1 seconds]
{C} [sig-apps]
"""
    printed = outcomes.Printed()
    found: dict[str, Outcome] = {}
    for line in text.splitlines(keepends=True):
        found |= printed.read(line)
    assert found == {A: Outcome(PASSED, 3.123), B: Outcome(FAILED, 600.5)}


def test_the_focus_is_these_tests_and_no_others() -> None:
    """Names hold what means something in a regular expression, and one may begin as another does."""
    focus = re.compile(outcomes.focus([A, B]))
    assert focus.search(f"{outcomes.SUITE} {A}")
    assert focus.search(f"{outcomes.SUITE} {B}")
    assert not focus.search(f"{outcomes.SUITE} {C}")
    assert not focus.search(f"{outcomes.SUITE} [sig-node] Pods should be f [Conformance]")


def test_a_run_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    """What has no outcome is pending; the report's word replaces an earlier one; a torn last line costs only itself."""
    path = tmp_path / "build/outcomes.jsonl"
    first = Journal(path, subject=SUBJECT)
    first.add({A: Outcome(FAILED)})
    first.add({A: Outcome(FAILED, 2.0, "why"), B: Outcome(PASSED)})
    with path.open("a") as file:
        file.write('{"name": "[sig-apps] Job $')
    second = Journal(path, subject=SUBJECT)
    assert second.outcomes == {A: Outcome(FAILED, 2.0, "why"), B: Outcome(PASSED)}
    assert outcomes.pending([A, B, C], second.outcomes) == [C]
    second.add({C: Outcome(PASSED)})
    assert outcomes.pending([A, B, C], Journal(path, subject=SUBJECT).outcomes) == []


def test_another_commit_begins_anew(tmp_path: Path) -> None:
    """Outcomes of one commit or profile say nothing about another."""
    path = tmp_path / "outcomes.jsonl"
    Journal(path, subject=SUBJECT).add({A: Outcome(PASSED)})
    assert Journal(path, subject={**SUBJECT, "profile": "bare"}).outcomes == {}
    assert Journal(path, subject=SUBJECT).outcomes == {}
