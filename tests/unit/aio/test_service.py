"""Services that are started again."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
import structlog.testing

from hpk import errors
from hpk.aio import service

pytestmark = pytest.mark.virtual_time


async def test_a_service_that_fails_is_started_again_and_named() -> None:
    """Whatever it raised, and also when it returned."""
    run = mock.AsyncMock(side_effect=[ValueError("bug"), None, asyncio.CancelledError])
    with structlog.testing.capture_logs() as told, pytest.raises(asyncio.CancelledError):
        await service.kept("watch of pods", run)
    assert run.await_count == 3
    assert [entry["service"] for entry in told] == ["watch of pods"] * 2


async def test_a_service_that_keeps_failing_ends_the_program() -> None:
    """It starts anew as a whole; the error names the service and the last trouble."""
    run = mock.AsyncMock(side_effect=ValueError("bug"))
    with pytest.raises(errors.Retryable, match=r"watch of pods running: it failed 3 times.*ValueError: bug"):
        await service.kept("watch of pods", run, attempts=3)


async def test_what_nothing_mends_is_not_tried_again() -> None:
    """A Fatal passes."""
    run = mock.AsyncMock(side_effect=errors.Fatal("no port"))
    with pytest.raises(errors.Fatal, match="no port"):
        await service.kept("kubelet's API", run)
    assert run.await_count == 1
