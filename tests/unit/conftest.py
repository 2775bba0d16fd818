"""For all unit tests."""

from __future__ import annotations

import structlog

# As structlog is without being told, but for errors: to draw one with the variables of every frame takes seconds.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
    ]
)
