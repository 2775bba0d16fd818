"""``hpk kubectl``: the kubectl in hpk.sif, for hosts that have none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Sequence

PROGRAM = "/opt/hpk/bin/kubectl"


def run(arguments: Sequence[str]) -> NoReturn:
    """Become kubectl: its input, output, terminal and exit code are this command's.

    Raises:
        errors.Fatal: This is not hpk.sif.
    """
    try:
        os.execv(PROGRAM, ["kubectl", *arguments])  # noqa: S606 - no shell is the point
    except OSError as error:
        raise errors.Fatal(f"Cannot run {PROGRAM}: {error.strerror}; it is in hpk.sif only") from error
