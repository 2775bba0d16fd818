"""Packages that are not imported where others can do without them; as cheap to import as an agent's start needs it."""

from __future__ import annotations

import sys


class Without:
    """A context manager; modules of these names are missing for what is imported meanwhile, and can do without."""

    def __init__(self, *names: str) -> None:
        self._names = [name for name in names if name not in sys.modules]

    def __enter__(self) -> None:
        for name in self._names:
            sys.modules[name] = None  # type: ignore[assignment] # `import` then raises ModuleNotFoundError

    def __exit__(self, *_: object) -> None:
        for name in self._names:
            del sys.modules[name]
