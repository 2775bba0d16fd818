"""Lazy imports of libraries' unused parts, to save memory and time at each start."""

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
    """Finds modules that are loaded on first use (``importlib.abc.MetaPathFinder``)."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the lazy spec of a module, None for any other module."""
        if name not in self._names:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def later(*names: str) -> None:
    """Load these modules on first use, not when others import them."""
    sys.meta_path.insert(0, Later(frozenset(names)))
