"""The readiness of a component of the control plane: what its /readyz answers, with a client certificate."""

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
    """Ready is what answers 200 at the URL, to this client."""

    url: str
    authority: Path
    certificate: Path
    key: Path

    async def __call__(self) -> str | None:
        """Return None if it answers 200, else the first line of the trouble."""
        timeout = aiohttp.ClientTimeout(total=_ASK_SECONDS)
        try:
            # A connection of its own each time: a restarted component must not be judged by an old one.
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
    """Return the lines of a verbose /readyz that failed, else the beginning."""
    failed = [line for line in text.splitlines() if line.startswith("[-]")]
    return "; ".join(failed) or text[:200]
