"""A command is run to its end, or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.host import commands

if TYPE_CHECKING:
    import pytest


def test_too_much_output_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never stops talking does not fill the host's memory."""
    monkeypatch.setattr(commands, "MAX_OUTPUT", 1000)
    code, _, _, end = commands.run(["yes"])
    assert (code, end) == (-9, "overflow")
