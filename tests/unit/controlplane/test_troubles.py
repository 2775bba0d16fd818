"""What the control plane cannot mend by itself."""

from __future__ import annotations

import structlog.testing

from hpk.controlplane import troubles


def test_a_trouble_is_logged_once_when_it_comes_and_when_it_goes() -> None:
    """On the node it stands as long as it lasts, with its newest words."""
    found = troubles.Troubles()
    with structlog.testing.capture_logs() as told:
        found.tell("room", "8 MB left")
        found.tell("room", "4 MB left")
        found.tell("files", "too few")
        assert str(found) == "too few; 4 MB left"
        found.tell("room", "")
        found.tell("room", "")
    assert str(found) == "too few"
    assert [(entry["log_level"], entry["what"]) for entry in told] == [
        ("warning", "room"), ("warning", "files"), ("info", "room"),
    ]  # fmt: skip
