"""Imports of libraries without those of their parts that nothing here uses: memory for good, and time at each start."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import LazyLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Later:
    """Finds modules that are loaded when they are first looked into (``importlib.abc.MetaPathFinder``)."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded lazily, None for any other."""
        if name not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def later(*names: str) -> None:
    """Have these modules loaded when they are first looked into, not when others import them."""
    sys.meta_path.insert(0, Later(frozenset(names)))
