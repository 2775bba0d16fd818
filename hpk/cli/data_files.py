"""The data files that are installed into a user's home."""

from __future__ import annotations

import sys
from pathlib import Path

import hpk
from hpk import errors


def file(name: str) -> Path:
    """Return the file of this name in hpk.sif, beside an installed package, or in the source tree.

    Raises:
        errors.Fatal: It is in none of these.
    """
    package = Path(hpk.__file__).parent
    places = (package.parents[1] / "share", Path(sys.prefix) / "share" / "hpk", package.parent / "scripts")
    for place in places:
        if (place / name).is_file():
            return place / name
    raise errors.Fatal(f"Cannot find {name}: it is in none of {', '.join(map(str, places))}")
