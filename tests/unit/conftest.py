"""For all unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

# As structlog is without being told, but for errors: to draw one with the variables of every frame takes seconds.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A test that sets up the program's logging leaves none of it to the others."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
