"""Services of a TaskGroup that run until cancelled, and whose end is an error.

A task that merely returns leaves its siblings running (a TaskGroup ends only for exceptions), so a watch loop that
ends by mistake would go unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import Awaitable


async def forever(name: str, service: Awaitable[object]) -> NoReturn:
    """Run the service, named as a user would ("watch of pods"), and never return; its exceptions pass unchanged.

    Raises:
        errors.Retryable: The service returned.
    """
    await service
    raise errors.Retryable(f"Cannot go on: the {name} ended, though it must run for as long as the program does")
