"""A pod that says much is heard, and does not bury what others say: as client-go's correlator has it."""

from __future__ import annotations

from typing import Any

import pytest

from hpk.pods import correlate


class World:
    """A correlator, and a clock that stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.correlator = correlate.Correlator(clock=lambda: self.now)

    def say(self, message: str, **more: Any) -> correlate.CorrelatedEvent | None:
        """What comes of one event."""
        given = {"namespace": "ns", "name": "p", "uid": "u", "kind": "Warning", "reason": "R", "at": self.now, **more}
        return self.correlator.correlate(correlate.PodEvent(message=message, **given))


@pytest.fixture
def world() -> World:
    """With nothing said yet."""
    return World()


def test_what_is_said_again_is_one_event_with_a_count(world: World) -> None:
    """Of one pod, part, type, reason and text; with the time of the first."""
    first = world.say("x")
    world.now += 5
    again = world.say("x")
    assert first
    assert again
    assert (first.name, first.count, first.is_new) == (again.name, 1, True)
    assert (again.count, again.first_at, again.is_new) == (2, 1000.0, False)
    others = [world.say("x", uid="v"), world.say("x", kind="Normal"), world.say("x", reason="S"), world.say("y")]
    assert [other and other.count for other in others] == [1, 1, 1, 1]


def test_ten_texts_of_one_reason_become_one_event(world: World) -> None:
    """Within ten minutes; the newest text stands for them."""
    names = set()
    for number in range(9):
        told = world.say(f"text {number}")
        assert told
        names.add(told.name)
    assert len(names) == 9
    tenth, eleventh = world.say("text 9"), world.say("text 10")
    assert tenth
    assert eleventh
    assert tenth.name == eleventh.name not in names
    assert (eleventh.event.message, eleventh.count) == ("(combined from similar events): text 10", 2)
    world.now += correlate.SIMILAR_SECONDS + 1
    later = world.say("text 11")
    assert later
    assert later.event.message == "text 11"


def test_a_pod_may_say_twenty_five_things_of_a_type_and_then_one_in_five_minutes(world: World) -> None:
    """What was not written still counts, and other pods and other types have budgets of their own."""
    heard = [world.say("x") for _ in range(40)]
    assert [told is not None for told in heard] == [True] * 25 + [False] * 15
    assert world.say("x", kind="Normal")
    assert world.say("x", uid="v")
    world.now += correlate.REFILL_SECONDS
    told = world.say("x")
    assert told
    assert told.count == 41
    assert world.say("x") is None


def test_how_a_pod_ended_is_told_however_much_it_said_before(world: World) -> None:
    """Once, under its key."""
    for _ in range(40):
        world.say("x")
    assert world.say("over", key="end")
    assert world.say("over", key="end") is None


def test_what_an_earlier_kubelet_told_is_counted_on(world: World) -> None:
    """Also what it had combined."""
    given: dict[str, Any] = {"namespace": "ns", "name": "p", "uid": "u", "kind": "Warning", "reason": "R", "at": 5.0}
    world.correlator.remember(correlate.PodEvent(message="x", count=3, **given), first_at=4.0)
    combined = correlate.PodEvent(message=correlate.COMBINED + "y", count=7, **given)
    world.correlator.remember(combined, first_at=4.0)
    told = world.say("x")
    assert told
    assert (told.count, told.first_at, told.is_new) == (4, 4.0, False)
    for number in range(8):
        world.say(f"text {number}")
    told = world.say("one more")
    assert told
    assert (told.count, told.is_new) == (8, False)


def test_what_is_remembered_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet that lives for months does not grow with what it has told."""
    monkeypatch.setattr(correlate, "MOST_REMEMBERED", 3)
    for number in range(9):
        world.say("x", uid=str(number))
    remembered = (world.correlator._seen, world.correlator._similar, world.correlator._budgets)
    assert [len(one._items) for one in remembered] == [3, 3, 3]


def test_names_fit_and_words_that_are_not_utf8_have_one(world: World) -> None:
    """A pod's name may have 253 characters, and so may the event's."""
    told = world.say("caf\udce9", name="p" * 253)
    assert told
    assert len(told.name) < 253
