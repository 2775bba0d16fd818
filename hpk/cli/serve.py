"""``hpk serve``: what hpk.sbatch runs inside its container."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from hpk import config


def run(settings: config.Settings) -> int:
    """Run until a signal asks for the end.

    Raises:
        errors.Fatal: Something that must run cannot.
    """
    configure_logging(settings.log_level)
    from hpk import app  # noqa: PLC0415 - after logging is set up, so that every logger has its shape

    # What imports made stays for ever: no collection needs to look at it again.
    gc.freeze()
    asyncio.run(app.serve(settings))
    return 0


def configure_logging(level: str) -> None:
    """One line an event on standard error, which is the job's output: time, level, message, key=value."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper(), logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
