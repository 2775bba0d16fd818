"""How the control plane ended: an exit code, by which hpk.sbatch decides about a restart, and a message.

| code | meaning | restarted |
|-|-|-|
| 0 | an orderly stop | no |
| 70 (EX_SOFTWARE) | an unexpected error | yes, with back-off |
| 75 (EX_TEMPFAIL) | something is unavailable: space on the home, a component | yes, with back-off |
| 78 (EX_CONFIG) | a restart would not help: a setting, a directory in use | no |
| above 128 | killed by a signal | yes, with back-off |
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors, jobdir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ASKED, BROKEN, PASSING, LASTING = 0, 70, 75, 78
FILE = "ended.json"
"""Written at the end, removed at the next start; hpk.sbatch writes it if the control plane could not."""


@dataclass(frozen=True)
class Ending:
    """An exit code and a reason for the user."""

    code: int
    reason: str


def of(error: BaseException) -> Ending:
    """Return the ending for an uncaught error."""
    leaves = [leaf for leaf in _leaves(error) if not isinstance(leaf, KeyboardInterrupt | SystemExit)]
    if not leaves:
        return Ending(ASKED, "it was interrupted")
    unforeseen = [leaf for leaf in leaves if not isinstance(leaf, errors.HpkError)]
    if unforeseen:
        first = unforeseen[0]
        return Ending(BROKEN, f"an unexpected error ended it: {type(first).__name__}: {first}")
    reason = "; ".join(dict.fromkeys(str(leaf) for leaf in leaves))
    lasts = any(not isinstance(leaf, errors.Retryable) for leaf in leaves)
    return Ending(LASTING if lasts else PASSING, reason)


def record(directory: Path, end: Ending, *, job_id: str, at: float) -> None:
    """Record the ending for ``hpk status``. A full home is ignored."""
    with contextlib.suppress(OSError):
        found = {"job_id": job_id, "code": end.code, "reason": end.reason, "at": int(at)}
        jobdir.write_json(str(directory / FILE), found, is_durable=False)


def told(directory: Path) -> str:
    """Return one line about how this directory's last control plane ended; empty if that is unknown."""
    try:
        found: Any = jobdir.read_json(str(directory / FILE))
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(found["at"])))
        return f"job {found['job_id']} at {at}: {found['reason']}"
    except (OSError, ValueError, TypeError, LookupError):
        return ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
