"""Writes the file of `hpk.agent.modules`, when the image is built.

Run as ``python3 -B -I -S <lib>/hpk/agent/pack.py``, with the agent's Python, when all that it imports is in place and
compiled.
"""

from __future__ import annotations

import importlib.util
import marshal
import subprocess
import sys
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parents[2]))  # omitted by -S and -I

from hpk.agent import modules

START = ("hpk.agent.main", "hpk.agent.loop", "hpk.link.client")
"""What the agent imports, in its order."""


def pack(directory: str, names: tuple[str, ...] = START) -> bytes:
    """Return the file's content: these modules and all that they import, in the order of import.

    ``directory`` has the packages, and is on this process's path too.

    Raises:
        subprocess.CalledProcessError: One of them cannot be imported; its error is on standard error.
    """
    imports = (
        f"import sys; sys.path.append({directory!r}); import {', '.join(names)}\n"
        "print(*(name for name, module in sys.modules.items() if getattr(module, '__spec__', None)))"
    )
    argv = [sys.executable, "-B", "-I", "-S", "-c", imports]
    imported = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    index: dict[str, tuple[str, bool, int, int]] = {}
    codes: list[bytes] = []
    begin = 0
    for name in sorted(imported, key=lambda name: name in modules.LAZY):  # what all pods read is contiguous
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        # An extension has no code here, but its file's name saves a search.
        code = marshal.dumps(spec.loader.get_code(name)) if isinstance(spec.loader, SourceFileLoader) else b""
        if code or isinstance(spec.loader, ExtensionFileLoader):
            index[name] = (spec.origin, spec.submodule_search_locations is not None, begin, len(code))
            codes.append(code)
            begin += len(code)
    head = marshal.dumps(index)
    return b"".join([len(head).to_bytes(modules.LENGTH_BYTES, "little"), head, *codes])


def main() -> None:
    """Write the file to its place."""
    directory = str(Path(__file__).parents[2])
    Path(modules.path(directory)).write_bytes(pack(directory))


if __name__ == "__main__":
    main()
