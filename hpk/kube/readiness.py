"""The readiness of a control plane component, from its /readyz, with a client certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import aiohttp

if TYPE_CHECKING:
    from pathlib import Path

_ASK_SECONDS = 5.0


@dataclass(frozen=True)
class Https:
    """A check that the URL answers 200 to this client."""

    url: str
    authority: Path
    certificate: Path
    key: Path

    async def __call__(self) -> str | None:
        """Return None if it answers 200, else a one-line description of the problem."""
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            # A new connection each time: an old one says nothing about a restarted component.
            async with (
                aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._tls)) as session,
                session.get(self.url) as response,
            ):
                if response.status == 200:  # noqa: PLR2004 - the HTTP code
                    return None
                return f"{self.url} answers {response.status}: {_failures(await response.text())}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"{self.url} does not answer: {error or type(error).__name__}"

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.certificate, self.key)
        return context


def _failures(text: str) -> str:
    """Return the failed lines of a verbose /readyz, else its beginning."""
    failed = [line for line in text.splitlines() if line.startswith("[-]")]
    return "; ".join(failed) or text[:200]
