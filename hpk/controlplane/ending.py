"""How the control plane ended: an exit code for hpk.sbatch, which decides whether to start it again, and words.

| code | what it means | started again |
|-|-|-|
| 0 | it was asked to end | no |
| 70 (EX_SOFTWARE) | an error that nobody foresaw | yes, with growing pauses |
| 75 (EX_TEMPFAIL) | what it needs is away: room on the home, a component | yes, with growing pauses |
| 78 (EX_CONFIG) | what another start would not mend: a setting, a directory that is in use | no |
| above 128 | it was killed by a signal | yes, with growing pauses |
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
"""Written at the end, removed at the next start; hpk.sbatch writes it for one that could not."""


@dataclass(frozen=True)
class Ending:
    """An exit code and the reason, fit for the user."""

    code: int
    reason: str


def of(error: BaseException) -> Ending:
    """Return what an error that nobody caught comes to."""
    leaves = [leaf for leaf in _leaves(error) if not isinstance(leaf, KeyboardInterrupt | SystemExit)]
    if not leaves:
        return Ending(ASKED, "it was interrupted")
    unforeseen = [leaf for leaf in leaves if not isinstance(leaf, errors.HpkError)]
    if unforeseen:
        first = unforeseen[0]
        return Ending(BROKEN, f"an error that nobody foresaw ended it: {type(first).__name__}: {first}")
    reason = "; ".join(dict.fromkeys(str(leaf) for leaf in leaves))
    lasts = any(not isinstance(leaf, errors.Retryable) for leaf in leaves)
    return Ending(LASTING if lasts else PASSING, reason)


def record(directory: Path, end: Ending, *, job_id: str, at: float) -> None:
    """Write the ending down for ``hpk status``; a home without room keeps it out, and that is no error."""
    with contextlib.suppress(OSError):
        found = {"job_id": job_id, "code": end.code, "reason": end.reason, "at": int(at)}
        jobdir.write_json(str(directory / FILE), found, is_durable=False)


def told(directory: Path) -> str:
    """Return how the last control plane of this directory ended, in a line; empty if it said nothing."""
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
