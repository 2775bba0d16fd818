"""``hpk serve``: the program that hpk.sbatch runs in its container."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import logging
import os
import tempfile
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

from hpk import errors, jobdir, missing
from hpk.aio import descriptors, output
from hpk.controlplane import ending

with missing.Without("rich"):  # saves 3 MiB: a job has no console
    import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk import config


def run(load: Callable[[], config.Settings]) -> int:
    """Run until a signal ends it; return the exit code (:mod:`hpk.controlplane.ending`)."""
    descriptors.raise_limit()
    faulthandler.enable(file=2)
    node = Path(tempfile.gettempdir()) / "hpk.log"
    try:
        settings = load()
    except errors.HpkError as error:
        out = output.take_over(node=node)
        out.write(f"hpk: {error}\n")
        out.finish()
        return ending.of(error).code
    directory = Path(settings.directory.control_plane)
    out = output.take_over(node=node, home=directory / "logs" / "hpk.log")
    end = ending.Ending(ending.ASKED, "it was asked to stop")
    try:
        configure_logging(settings.log_level, cast("TextIO", out))
        _serve(settings)
    except BaseException as error:  # noqa: BLE001 - every error is reported and has an exit code
        end = ending.of(error)
        if end.code == ending.BROKEN:
            out.write("".join(traceback.format_exception(error)))
        out.write(f"hpk: {end.reason}\n")
    ending.record(directory, end, job_id=os.environ.get("SLURM_JOB_ID", ""), at=time.time())
    out.finish()
    return end.code


def _serve(settings: config.Settings) -> None:
    try:
        jobdir.make_directory(settings.directory.control_plane)
    except OSError as error:
        raise errors.Retryable(f"Cannot make {settings.directory.control_plane}: {error.strerror}") from error
    from hpk import app  # noqa: PLC0415 - after logging is configured, so that every logger uses it

    # Imported objects stay for ever; keep them out of collections.
    gc.freeze()
    asyncio.run(app.serve(settings))


def configure_logging(level: str, out: TextIO) -> None:
    """Make loggers write one line per event: time, level, message, key=value."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper(), logging.INFO)),
        logger_factory=structlog.PrintLoggerFactory(out),
    )
    logging.basicConfig(level=logging.WARNING, stream=out)
