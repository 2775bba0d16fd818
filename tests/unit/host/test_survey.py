"""What is read of a host."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

from hpk.host import survey

if TYPE_CHECKING:
    from pathlib import Path


def test_subordinate_ids(tmp_path: Path) -> None:
    """The largest range counts, by name or by number; a file that is not there gives none."""
    me = pwd.getpwuid(os.getuid())
    file = tmp_path / "subuid"
    file.write_text(f"other:1:9999999\n{me.pw_name}:100000:10\n{me.pw_uid}:200000:65536\n")
    assert survey.subordinate(str(file), me) == [200000, 65536]
    assert survey.subordinate(str(tmp_path / "none"), me) is None
