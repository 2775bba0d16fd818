"""Expiry of certificates: the control plane restarts before its own expire, and warns about authorities."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING, NoReturn

from hpk import errors, pki
from hpk.aio import clock as clocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BEFORE = dt.timedelta(days=7)
"""The control plane restarts this long before its certificates expire."""
TOLD_BEFORE = dt.timedelta(days=180)
"""How long before an authority expires the user is warned."""
_LOOK_SECONDS = 3600.0
"""One long sleep would be wrong after a clock change or a suspended node."""


def certificates_end(authorities: Iterable[pki.Authority], *, now: dt.datetime) -> dt.datetime:
    """Return when the first of the certificates issued now expires."""
    return min(now + dt.timedelta(days=pki.CERTIFICATE_DAYS), *(authority.ends_at for authority in authorities))


def trouble(authorities: Mapping[str, pki.Authority], *, now: dt.datetime) -> str:
    """Return which authorities expire soon, and what to do; empty if none does."""
    ending = sorted((one.ends_at, name) for name, one in authorities.items() if one.ends_at - now < TOLD_BEFORE)
    if not ending:
        return ""
    names = ", ".join(name for _, name in ending)
    return (
        f"the certificate authorities of this state directory ({names}) expire on {ending[0][0]:%Y-%m-%d}: before "
        "that, run 'hpk down', move state/pki away, and run 'hpk up' (it also ends their kubeconfigs and tokens)"
    )


async def until(ends_at: dt.datetime, *, clock: clocks.Clock = clocks.SYSTEM) -> NoReturn:
    """Wait until the certificates that expire then must be renewed.

    Raises:
        errors.Retryable: It is time: a restart issues new ones.
    """
    while (left := (ends_at - BEFORE - clock.now()).total_seconds()) > 0:  # noqa: ASYNC110 - a clock
        await asyncio.sleep(min(left, _LOOK_SECONDS))
    raise errors.Retryable(
        f"The control plane's certificates expire on {ends_at:%Y-%m-%d}; it restarts to issue new ones"
    )
