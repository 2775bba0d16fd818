"""For all unit tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

# Neither an example nor the drawing of it is judged by the clock: in a fresh clone hypothesis first builds its tables.
hypothesis.settings.register_profile("units", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("units")

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
