"""One question feeds everybody, and silence proves nothing."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.aio import backoff
from hpk.slurm import model, poller
from tests import virtual, waiting
from tests.fakes import slurm as fake

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.virtual_time

RUNNING = model.Job(id="1", state=model.JobState.RUNNING)
DONE = model.Job(id="1", state=model.JobState.COMPLETED)


class Time:
    """The time of the test's loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def read(self) -> float:
        """Return the seconds since the loop was made."""
        return asyncio.get_running_loop().time()

    def pass_at_once(self, seconds: float) -> None:
        """Have so many seconds pass before anything else happens."""
        virtual.pass_at_once(seconds, self._monkeypatch)

    async def advance(self, seconds: float) -> None:
        """Return when so many seconds have passed, and all that was due has happened."""
        await asyncio.sleep(seconds)
        await waiting.turns()


def make(source: fake.FakeSource, clock: Time) -> poller.Poller:
    """A poller on virtual time, without chance in its pauses."""
    policy = backoff.BackoffPolicy(first_seconds=2.0, cap_seconds=120.0, jitter=0.0)
    return poller.Poller(source, poll_seconds=15.0, clock=clock.read, policy=policy)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The test's clock."""
    return Time(monkeypatch)


@pytest.mark.parametrize(("queued", "questions"), [(0, 10), (1, 20)])
async def test_at_rest_it_asks_seldom(clock: Time, queued: int, questions: int) -> None:
    """However many run, a question a minute; two while one waits: slurmctld hears two calls for each."""
    running = [dataclasses.replace(RUNNING, id=str(number)) for number in range(100)]
    waiting = [dataclasses.replace(RUNNING, id="q", state=model.JobState.PENDING)] * queued
    source = fake.FakeSource([*running, *waiting])
    polling = make(source, clock)
    for job in source.answer:
        polling.watch(job.id, lambda: None)
    task = asyncio.create_task(polling.run())
    await clock.advance(100)
    before = source.asked
    await clock.advance(600)
    task.cancel()
    assert source.asked - before == questions


async def test_jobs_that_nobody_watches_are_no_news(clock: Time) -> None:
    """The user's own come and go, and Slurm forgets a hundred pods that ended one by one: it asks as seldom."""
    source = fake.FakeSource([RUNNING])
    polling = make(source, clock)
    polling.watch("1", lambda: None)
    task = asyncio.create_task(polling.run())
    await clock.advance(100)
    before = source.asked
    for minute in range(10):
        source.answer = [RUNNING, dataclasses.replace(DONE, id=f"other-{minute}")]
        await clock.advance(60)
    task.cancel()
    assert source.asked - before == 10


async def test_after_news_it_asks_again_in_the_usual_time(clock: Time) -> None:
    """What has changed may change again."""
    source = fake.FakeSource([RUNNING])
    polling = make(source, clock)
    polling.watch("1", lambda: None)
    task = asyncio.create_task(polling.run())
    await clock.advance(300)
    source.answer = [DONE]
    polling.ask_soon()
    await clock.advance(1)
    before = source.asked
    await clock.advance(15)
    task.cancel()
    assert source.asked == before + 1


async def test_wishes_are_joined_and_spaced(clock: Time) -> None:
    """A hundred who have a reason make one question, at least a second after the last."""
    source = fake.FakeSource()
    polling = make(source, clock)
    task = asyncio.create_task(polling.run())
    await clock.advance(0.5)
    for _ in range(100):
        polling.ask_soon()
    await clock.advance(0.25)
    assert source.asked == 1
    await clock.advance(0.5)
    assert source.asked == 2
    polling.ask_soon(after_seconds=5)
    await clock.advance(4.5)
    assert source.asked == 2
    await clock.advance(1)
    task.cancel()
    assert source.asked == 3


async def test_changes_reach_who_watches(clock: Time) -> None:
    """A watcher hears the first sight, then each difference, and nothing after it left."""
    source = fake.FakeSource([RUNNING])
    polling = make(source, clock)
    seen: list[poller.Sighting | None] = []
    stop = polling.watch("1", lambda: seen.append(polling.sighting("1")))
    task = asyncio.create_task(polling.run())
    await clock.advance(31)
    source.answer = [DONE]
    await clock.advance(15)
    source.answer = []
    await clock.advance(15)
    stop()
    source.answer = [RUNNING]
    await clock.advance(15)
    task.cancel()
    assert seen == [poller.Sighting(job=RUNNING), poller.Sighting(job=DONE), poller.Sighting(job=None)]


async def test_silence_is_not_gone(clock: Time) -> None:
    """While Slurm does not answer, the last sight stands; before any answer nothing is known."""
    source = fake.FakeSource([RUNNING])
    source.error = errors.SlurmUnavailable("away")
    polling = make(source, clock)
    calls: list[None] = []
    polling.watch("1", lambda: calls.append(None))
    task = asyncio.create_task(polling.run())
    await clock.advance(10)
    assert polling.sighting("1") is None
    source.error = None
    await clock.advance(30)
    source.error = errors.SlurmUnavailable("away")
    await clock.advance(300)
    task.cancel()
    assert polling.sighting("1") == poller.Sighting(job=RUNNING)
    assert (len(calls), str(polling.error)) == (1, "away")


async def test_an_older_question_does_not_make_a_job_gone(clock: Time) -> None:
    """A job submitted while squeue ran is not in its answer, and yet not gone."""
    source = fake.FakeSource()
    polling = make(source, clock)
    calls: list[None] = []

    def submit() -> None:
        clock.pass_at_once(0.1)
        polling.watch("1", lambda: calls.append(None))
        source.during = lambda: None

    source.during = submit
    task = asyncio.create_task(polling.run())
    await clock.advance(1)
    assert (polling.sighting("1"), calls) == (None, [])
    await clock.advance(15)
    task.cancel()
    assert (polling.sighting("1"), len(calls)) == (poller.Sighting(job=None), 1)


async def test_a_number_that_is_anothers_by_now_is_said(clock: Time) -> None:
    """By an answer that is younger than the watch only: an older one names the last job of that number."""
    polling = make(fake.FakeSource([RUNNING]), clock)
    task = asyncio.create_task(polling.run())
    await clock.advance(1)
    polling.watch("1", lambda: None)
    assert polling.sighting("1", is_it=lambda _: False) is None
    polling.ask_soon()
    await clock.advance(1)
    task.cancel()
    assert polling.sighting("1", is_it=lambda _: False) == poller.Sighting(job=None, is_anothers=True)
    assert polling.sighting("1") == poller.Sighting(job=RUNNING)


async def test_it_backs_off(clock: Time) -> None:
    """Failures space the questions out, a rate limit more so; wishes do not break through."""
    source = fake.FakeSource()
    source.error = errors.SlurmUnavailable("Rate limit exceeded", limits_rate=True)
    polling = make(source, clock)
    task = asyncio.create_task(polling.run())
    await clock.advance(0.25)
    polling.ask_soon()
    await clock.advance(15)
    assert source.asked == 1
    await clock.advance(2)
    assert source.asked == 2
    source.error = None
    await clock.advance(121)
    task.cancel()
    assert polling.error is None
    assert polling.snapshot is not None


async def test_fresh_is_younger_than_the_call(clock: Time) -> None:
    """Adopting looks at an answer to a question that began after it asked; no answer is an error."""
    source = fake.FakeSource([RUNNING])
    polling = make(source, clock)
    task = asyncio.create_task(polling.run())
    await clock.advance(5)
    source.answer = [DONE]
    waiting = asyncio.create_task(polling.fresh())
    await clock.advance(0.25)
    assert (await waiting).jobs == {"1": DONE}
    source.error = errors.SlurmUnavailable("away")
    waiting = asyncio.create_task(polling.fresh())
    await clock.advance(2)
    with pytest.raises(errors.SlurmUnavailable, match="away"):
        await waiting
    task.cancel()


async def test_leaving_twice_does_no_harm(clock: Time) -> None:
    """Two watch one job; one that leaves twice does not take the other along."""
    polling = make(fake.FakeSource([RUNNING]), clock)
    calls: list[None] = []
    call: Callable[[], None] = lambda: calls.append(None)  # noqa: E731 - two equal callbacks are the point
    stop = polling.watch("1", call)
    with polling.watched("1", call):
        stop()
        stop()
        task = asyncio.create_task(polling.run())
        await clock.advance(1)
        task.cancel()
    assert len(calls) == 1


async def test_it_ends_when_it_is_told_to_though_somebody_wishes_for_an_answer(clock: Time) -> None:
    """Both at once, as when the kubelet is stopped: nothing waits for a poller that goes on."""
    source = fake.FakeSource()
    polling = make(source, clock)
    task = asyncio.create_task(polling.run())
    await clock.advance(5)
    polling.ask_soon()
    task.cancel()
    await waiting.turns()
    assert task.cancelled()
