"""The version mark of a state directory, which stops an older program from using a newer one's data.

A newer API server stores objects in versions unknown to an older one, and a newer etcd upgrades its data. Neither
Kubernetes nor etcd may go back by a minor version (https://kubernetes.io/releases/version-skew-policy/).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import hpk
from hpk import errors, jobdir

if TYPE_CHECKING:
    from pathlib import Path

FILE = "version.json"


def check(directory: Path, *, ours: str = hpk.__version__) -> None:
    """Check that this program may use the control plane's directory.

    Raises:
        errors.Fatal: A newer program used it; the error names both versions.
    """
    theirs = recorded(directory)
    if _minor(theirs) > _minor(ours):
        raise errors.Fatal(
            f"Cannot use {directory}: HPK {theirs} has written it, and this is HPK {ours}.  Start it with the newer "
            "hpk.sif (HPK_IMAGE), or use another directory (HPK_STATE)"
        )


def mark(directory: Path, *, ours: str = hpk.__version__) -> None:
    """Record that this program has used the directory.

    Raises:
        errors.Fatal: As :func:`check`.
        OSError: The file system failed.
    """
    check(directory, ours=ours)
    if recorded(directory) != ours:
        jobdir.write_json(str(directory / FILE), {"hpk": ours})


def recorded(directory: Path) -> str:
    """Return the version of the program that last used the directory; empty if unknown."""
    return str((jobdir.peek_json(str(directory / FILE)) or {}).get("hpk") or "")


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
