"""Services of a TaskGroup that are started again when they fail, so that one error does not end all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NoReturn

import structlog

from hpk import errors
from hpk.aio import backoff, forever

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ATTEMPTS = 6
"""Failures in a row after which the whole program shall start anew: with the pauses between them half a minute."""
POLICY = backoff.Policy(first_seconds=1.0)

logger = structlog.get_logger(__name__)


async def kept(
    name: str,
    run: Callable[[], Awaitable[object]],
    *,
    policy: backoff.Policy = POLICY,
    attempts: int = ATTEMPTS,
) -> NoReturn:
    """Run the service until cancelled; start it again, with growing pauses, when it raises or returns.

    Its name is what the user would call it: "watch of pods". So many attempts that fail in a row end it.

    Raises:
        errors.Fatal: The service says that nothing will help.
        errors.Retryable: It failed too often in a row; its last error is the cause.
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
