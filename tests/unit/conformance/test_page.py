"""The page on conformance has every name of the list, and a line on each test that did not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance import page
from tests.conformance.outcomes import FAILED, PASSED, SKIPPED, Outcome

ROOT = Path(__file__).parents[3]
NAMES = [
    "[sig-node] Pods should run",
    "[sig-node] Pods should <run|fly>",
    "[sig-network] DNS should answer",
    "[sig-apps] Job should end",
    "[sig-apps] Job should begin",
]
OUTCOMES = {
    NAMES[0]: Outcome(PASSED, 1.0),
    NAMES[1]: Outcome(FAILED, 1.0, "no"),
    NAMES[2]: Outcome(FAILED, 600.0, "no name"),
    NAMES[3]: Outcome(SKIPPED, 0.1, "needs two nodes"),
    "[sig-node] not of the list": Outcome(PASSED),
}
REASONS = """
images = ["no Alpine"]

[[reason]]
tests = "DNS should"
whose = "ours"
why = "the cluster has no DNS yet"

[[reason]]
tests = "sysctls"
whose = "user namespace"
why = "not here"
"""
SUBJECT = {"commit": "0123456789abcdef", "profile": "flannel", "date": "2026-01-01", "version": "v1.37.2"}


def test_every_name_is_in_one_of_three_lists() -> None:
    """What did not run counts as skipped; what is not of the list is left out."""
    found = page.document(NAMES, OUTCOMES, **SUBJECT)
    assert found == {**SUBJECT, "passed": [NAMES[0]], "failed": NAMES[1:3], "skipped": NAMES[3:]}


def test_the_page_tells_whose_each_failure_is() -> None:
    """A failure without a known reason says so, and what was not run is told from what skipped itself."""
    found = page.document(NAMES, OUTCOMES, **SUBJECT)
    text = page.markdown(found, OUTCOMES, page.reasons(REASONS), page.images(REASONS))
    assert "**1 of 5 passed**, 2 failed,\n1 skipped themselves, 1 were not run." in text
    assert "| sig-apps | 2 | 0 | 0 | 2 |" in text
    ours, unexplained = text.index("### HPK's: 1"), text.index("### Not yet explained: 1")
    assert ours < text.index("| [sig-network] DNS should answer | the cluster has no DNS yet |") < unexplained
    assert "| [sig-node] Pods should &lt;run\\|fly> | not yet explained |" in text[unexplained:]
    assert "- [sig-apps] Job should begin\n" in text[text.index("## Not run") : text.index("## Skipped themselves")]
    assert "| [sig-apps] Job should end | needs two nodes |" in text
    assert text.endswith("- no Alpine\n")


@pytest.mark.parametrize("change", [("ours", "nobody"), ("not here", ""), ("not here", "not\\nhere")])
def test_a_reason_is_whole(change: tuple[str, str]) -> None:
    """Whose it is, and why on one line."""
    with pytest.raises(ValueError, match="one line"):
        page.reasons(REASONS.replace(*change))


def test_our_own_reasons_can_be_read() -> None:
    """The file beside the page is good, and no two reasons are for the same tests."""
    text = (ROOT / "docs/conformance.toml").read_text()
    patterns = [reason.tests.pattern for reason in page.reasons(text)]
    assert patterns
    assert len(set(patterns)) == len(patterns)
    assert page.images(text)
