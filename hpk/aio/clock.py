"""The clock that is injected wherever time decides, so that a test says what time it is."""

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
        monotonic: Returns seconds that only ever grow, as the event loop counts them; for durations.
        time: Returns seconds since 1970, UTC; for what is written down or compared with what others have written.
    """

    monotonic: Callable[[], float] = time.monotonic
    time: Callable[[], float] = time.time

    def now(self) -> datetime:
        """Return the time with its zone, UTC."""
        return datetime.fromtimestamp(self.time(), UTC)


SYSTEM = Clock()
