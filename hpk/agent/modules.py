"""One file with the modules that a pod's start imports, instead of some two hundred small ones.

Each mount of hpk.sif begins with an empty cache, and every file that Python looks for costs squashfuse several
requests. The file is written when the image is built (`hpk.agent.pack`). It holds byte code for one version of Python,
which is not compared with its source. Without the file, as beside a tree that is bound over the image's `hpk`, modules
are imported as usual.

Format: the length of the index in eight bytes, the index, the modules' code; both as `marshal` writes them.
"""

from __future__ import annotations

import _thread
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

LENGTH_BYTES = 8
LAZY = frozenset(
    {
        # Pods do not need what asyncio, gRPC and protobuf use of these.
        "ast", "asyncio.sslproto", "base64", "inspect", "locale", "pkgutil", "random", "textwrap", "tokenize",
        "google.protobuf.internal.python_message",
        "hpk.agent.life.ephemeral", "hpk.agent.life.hooks", "hpk.agent.life.httpget", "hpk.agent.life.probes",
        "hpk.agent.serve.sessions", "hpk.link.sessions", "hpk.records",
    }
)  # fmt: skip
"""Modules that most short pods never use; they are loaded on first access."""


def path(directory: str) -> str:
    """Return the file's path among the packages of this directory."""
    return f"{directory}/hpk/agent/start.{sys.implementation.cache_tag}"


def install(file: str) -> None:
    """Import modules from this file, if it exists."""
    try:
        finder = Finder(os.open(file, os.O_RDONLY))
    except FileNotFoundError:
        return
    sys.meta_path.insert(-1, finder)  # before the finder that searches directories


class Finder:
    """Finds and loads modules (``importlib.abc.MetaPathFinder``, ``importlib.abc.Loader``).

    The descriptor of the file stays open.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        length = int.from_bytes(os.pread(descriptor, LENGTH_BYTES, 0), "little")
        self._begin = LENGTH_BYTES + length
        self._index: dict[str, tuple[str, bool, int, int]] = marshal.loads(os.pread(descriptor, length, LENGTH_BYTES))  # noqa: S302 - our image's own
        """Each module's file, whether it is a package, and the offset and length of its code."""
        # Unlike importlib, these two are loaded when the interpreter starts.
        self._spec: type[ModuleSpec] = sys.modules["_frozen_importlib"].ModuleSpec
        self._shared = sys.modules["_frozen_importlib_external"].ExtensionFileLoader

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to load a module; None if the file does not have it."""
        del path, target
        found = self._index.get(name)
        if found is None:
            return None
        file, is_package, _, length = found
        loader: Any = self if length else self._shared(name, file)
        spec = self._spec(name, loader, origin=file, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [file.rpartition("/")[0]]
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave this to Python."""
        del spec

    def exec_module(self, module: ModuleType) -> None:
        """Run a module's code, or delay that until it is first accessed."""
        if module.__name__ in LAZY:
            assert module.__spec__ is not None
            module.__spec__.loader_state = Load(self.run)
            module.__class__ = Waiting
        else:
            self.run(module)

    def run(self, module: ModuleType) -> None:
        """Run a module's code."""
        _, _, begin, length = self._index[module.__name__]
        exec(marshal.loads(os.pread(self._descriptor, length, self._begin + begin)), module.__dict__)  # noqa: S102, S302 - as an import does


class Load:
    """Runs a waiting module's code once, whichever thread comes first."""

    def __init__(self, run: Callable[[ModuleType], None]) -> None:
        self._run, self._lock, self._has_begun = run, _thread.RLock(), False

    def finish(self, module: ModuleType) -> None:
        """Return when the code has been run, or is running in this thread, whose own imports lead back here.

        Raises:
            BaseException: What the code raises; it is run again on the next access.
        """
        with self._lock:
            if self._has_begun:
                return
            self._has_begun = True
            try:
                self._run(module)
            except BaseException:
                self._has_begun = False
                raise
            module.__class__ = type(sys)


class Waiting(type(sys)):  # type: ignore[misc] # ModuleType, without importing types
    """A module that was never accessed; ``importlib.util.LazyLoader``'s would be loaded by a second import."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute once the module is loaded; those that the import itself set need no loading."""
        get = type(sys).__getattribute__
        if not name.startswith("__"):
            get(self, "__spec__").loader_state.finish(self)
        return get(self, name)

    def __getattr__(self, name: str) -> Any:
        """Load the module for a name such as ``__all__``, and return that attribute."""
        self.__spec__.loader_state.finish(self)
        return type(sys).__getattribute__(self, name)  # whatever class it has by now
