"""For the tests of a pod's path: time passes only when nothing else can happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], virtual.Loop]]:
    """Return the loop that every test of this directory runs in."""
    return {"virtual": virtual.Loop}
