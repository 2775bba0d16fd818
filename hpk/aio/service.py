"""Services of a TaskGroup that are restarted when they fail, so that one error does not end all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from hpk import errors
from hpk.aio import backoff, forever

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ATTEMPTS = 6
"""Failures in a row after which the whole program restarts: half a minute, pauses included."""
POLICY = backoff.BackoffPolicy(first_seconds=1.0)

logger = structlog.get_logger(__name__)


async def kept(
    name: str,
    run: Callable[[], Awaitable[object]],
    *,
    policy: backoff.BackoffPolicy = POLICY,
    attempts: int = ATTEMPTS,
) -> NoReturn:
    """Run the service, named as a user would ("watch of pods"); restart it, with growing pauses, when it ends.

    Raises:
        errors.Fatal: The service raised it: a restart will not help.
        errors.Retryable: It failed `attempts` times in a row; its last error is the cause.
    """
    pauses = backoff.Backoff(policy)
    while True:
        pauses.started()
        try:
            await forever.forever(name, run())
        except errors.Fatal:
            raise
        except Exception as error:
            pause = pauses.failed()
            if pauses.failures >= attempts:
                raise errors.Retryable(
                    f"Cannot keep the {name} running: it failed {attempts} times in a row, the last time with "
                    f"{type(error).__name__}: {error}"
                ) from error
            logger.exception(
                "A service of the control plane failed; starting it again", service=name, pause_seconds=round(pause, 1)
            )
            await asyncio.sleep(pause)
