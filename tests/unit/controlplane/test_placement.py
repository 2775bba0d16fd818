"""Where etcd's data live."""

from __future__ import annotations

import errno
import fcntl
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.controlplane import placement

if TYPE_CHECKING:
    from pathlib import Path

GOOD = placement.FileSystemTraits(has_locks=True, sync_seconds=0.004)
SLOW = placement.FileSystemTraits(has_locks=True, sync_seconds=0.05)
UNLOCKED = placement.FileSystemTraits(has_locks=False, sync_seconds=0.0)
LOCAL = placement.FileSystemTraits(has_locks=True, sync_seconds=0.004, reach="host")
UNKNOWN = placement.FileSystemTraits(has_locks=True, sync_seconds=0.004, reach="unknown")


@pytest.mark.parametrize(
    ("wanted", "facts", "place", "why"),
    [
        ("auto", GOOD, "shared", "takes 4.0 ms"),
        ("auto", SLOW, "node", "takes 50.0 ms"),
        ("auto", UNLOCKED, "node", "has no locks"),
        ("auto", LOCAL, "node", "no other host sees"),
        ("auto", UNKNOWN, "node", "other hosts may not see"),
        ("shared", UNKNOWN, "shared", "HPK_ETCD"),
        ("shared", SLOW, "shared", "HPK_ETCD"),
        ("node", GOOD, "node", "HPK_ETCD"),
    ],
)
def test_the_file_system_decides_unless_the_user_does(
    tmp_path: Path, wanted: str, facts: placement.FileSystemTraits, place: str, why: str
) -> None:
    """Where it can be locked and is quick etcd works on it directly, and nothing is ever lost."""
    chosen, because = placement.choose(wanted, facts, directory=tmp_path)
    assert chosen == place
    assert why in because


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """Without locks etcd would not start; the text says what to do instead."""
    with pytest.raises(errors.Fatal, match=r"no locks.*HPK_ETCD=auto.*HPK_STATE"):
        placement.choose("shared", UNLOCKED, directory=tmp_path)
    with pytest.raises(errors.Fatal, match=r"locks that no other host sees.*HPK_ETCD=auto"):
        placement.choose("shared", LOCAL, directory=tmp_path)


def test_a_directory_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """On this machine's disk there are locks."""
    facts = placement.measure(tmp_path)
    assert facts.has_locks
    assert facts.sync_seconds > 0
    assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Lustre answers without the mount option flock."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert placement.measure(tmp_path) == UNLOCKED


def test_a_full_file_system_is_named(tmp_path: Path) -> None:
    """The error says what would help."""
    with pytest.raises(errors.Retryable, match=r"Cannot write to .*nowhere"):
        placement.measure(tmp_path / "nowhere")
    assert "HPK_STATE" in placement.advice(OSError(errno.EDQUOT, "quota"))
    assert placement.advice(OSError(errno.EIO, "x")) == ""
