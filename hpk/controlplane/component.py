"""What the supervisor must know about a component; pure, so that tests compare it as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Probe(Protocol):
    """One question whether a component is ready."""

    async def __call__(self) -> str | None:
        """None if it is ready, else why not, in a few words."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A program to run."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Components that must be ready before this one starts, and that stop only after it."""
    probe: Probe | None = None
    """Without one it is ready as soon as it runs."""
    ready_seconds: float = 120.0
    """Not ready after this long is a failure; a cold binary on a slow shared file system takes its time."""
    stop_seconds: float = 10.0
    """From SIGTERM to SIGKILL."""
