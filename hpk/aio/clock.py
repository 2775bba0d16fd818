"""The clock that is injected wherever time decides, so that a test can set it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two ways to read the time.

    Attributes:
        monotonic: Returns the event loop's seconds, which never go back; for durations.
        time: Returns Unix seconds; for times that are stored or compared with stored ones.
    """

    monotonic: Callable[[], float] = time.monotonic
    time: Callable[[], float] = time.time

    def now(self) -> datetime:
        """Return the time in UTC."""
        return datetime.fromtimestamp(self.time(), UTC)


SYSTEM = Clock()
