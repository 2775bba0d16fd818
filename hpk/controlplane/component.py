"""Descriptions of components for the supervisor: plain values, which tests can compare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Component:
    """A program to run."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    """Components that must be ready before this one starts, and that stop after it."""
    probe: Callable[[], Awaitable[str | None]] | None = None
    """Returns None if the component is ready, else a short reason. Without one, it is ready once it runs."""
    ready_seconds: float = 120.0
    """The startup timeout; loading a binary from a slow shared file system takes time."""
    stop_seconds: float = 10.0
    """From SIGTERM to SIGKILL."""
