"""For all unit tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

from tests import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return the loop that a test runs in: a virtual one if the test or its module is marked so."""
    if item.get_closest_marker("virtual_time"):
        return {"virtual": virtual.Loop}
    return {"real": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A test that sets up the program's logging leaves none of it to the others."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
