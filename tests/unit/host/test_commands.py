"""A command is run to its end, or ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpk.host import commands

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_too_much_output_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that never stops talking does not fill the host's memory."""
    monkeypatch.setattr(commands, "MAX_OUTPUT", 1000)
    code, _, _, end = commands.run(["yes"])
    assert (code, end) == (-9, "overflow")


def test_a_command_is_a_program_on_the_path(tmp_path: Path) -> None:
    """The first one that may be run; a directory or a plain file of that name is none."""
    (tmp_path / "a/squeue").mkdir(parents=True)
    for directory, mode in (("b", 0o644), ("c", 0o755), ("d", 0o755)):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "squeue").touch(mode)
    env = {"PATH": ":".join(str(tmp_path / directory) for directory in "abcd")}
    assert commands.find("squeue", env) == str(tmp_path / "c/squeue")
    assert commands.find("sinfo", env) is None
    assert commands.find(str(tmp_path / "d/squeue"), env) == str(tmp_path / "d/squeue")
