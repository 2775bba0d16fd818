"""Growing, jittered, capped pauses between attempts, reset after a healthy time."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, kw_only=True)
class BackoffPolicy:
    """The lengths of the pauses."""

    first_seconds: float = 0.5
    factor: float = 2.0
    """Ratio of each pause to the one before."""
    cap_seconds: float = 30.0
    """The longest pause (jitter comes on top)."""
    jitter: float = 0.1
    """Most of a pause that is added at random, so that clients that failed together do not return together."""
    healthy_seconds: float = 60.0
    """An attempt that lasted this long was a success: counting restarts."""

    def pause(self, failures: int) -> float:
        """Return the seconds to wait after that many failures in a row, without jitter."""
        # The exponent is bounded: a float overflows after a thousand failures.
        return min(self.first_seconds * self.factor ** min(failures - 1, 64), self.cap_seconds)


class Backoff:
    """The pauses of one operation that is retried; ``failures`` counts failures in a row, the last one included."""

    def __init__(
        self,
        policy: BackoffPolicy | None = None,
        *,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.failures = 0
        self._policy = policy or BackoffPolicy()
        self._chance = chance
        self._clock = clock
        self._started_at: float | None = None

    def started(self) -> None:
        """Record the start of an attempt; otherwise only :meth:`succeeded` resets the failures."""
        self._started_at = self._clock()

    def succeeded(self) -> None:
        """Forget all failures."""
        self.failures = 0

    def failed(self) -> float:
        """Count a failure and return the seconds to wait before the next attempt."""
        policy = self._policy
        if self._started_at is not None and self._clock() - self._started_at >= policy.healthy_seconds:
            self.failures = 0
        self.failures += 1
        return policy.pause(self.failures) * (1 + policy.jitter * self._chance())
