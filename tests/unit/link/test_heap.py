"""The heap keeps what carrying bytes frees."""

from __future__ import annotations

import ctypes
import resource
from types import SimpleNamespace
from typing import TYPE_CHECKING

from hpk.link import heap

if TYPE_CHECKING:
    import pytest


def test_pieces_that_come_and_go_cost_no_pages() -> None:
    """Each piece would be a hundred pages, fetched and given back."""
    heap.keep_what_is_freed()

    def churn() -> None:
        pieces = [bytearray(b"x") * (512 << 10) for _ in range(8)]
        pieces.clear()

    churn()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        churn()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 8 * 10 * 100 / 4


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing fails without mallopt."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: SimpleNamespace())
    heap.keep_what_is_freed()
