"""A pod that ends at once costs no link; every other has one, and so has one whose datagrams are lost."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk.agent.serve import uplink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.virtual_time


class Far:
    """Ringer, link and reporter in one: what was used of it."""

    def __init__(self) -> None:
        self.attached: list[str] = []
        self.dialled = 0
        self.is_dialled = asyncio.Event()
        self.is_answered = True
        self.told: list[int] = []
        self.closed = False

    async def acknowledged(self, sequence: int) -> None:
        if not self.is_answered and not self.dialled:
            await asyncio.get_running_loop().create_future()
        self.told.append(sequence)

    async def idle(self) -> None:
        pass

    def attach(self, _uplink: Any) -> None:
        self.attached.append("ringer")

    def close(self) -> None:
        self.closed = True

    async def dial(self) -> Any:
        self.dialled += 1
        self.is_dialled.set()
        return self


@pytest.fixture
async def far() -> Far:
    """A kubelet that answers."""
    return Far()


@pytest.fixture
async def make(far: Far) -> AsyncIterator[Callable[[bool], uplink.Uplink]]:
    """Begins an uplink that has much patience, or none."""
    made: list[uplink.Uplink] = []

    def begin(is_patient: bool) -> uplink.Uplink:  # noqa: FBT001 - the only thing that differs
        whole: Any = far
        made.append(uplink.Uplink(far.dial, reporter=whole, ringer=whole, is_patient=is_patient))
        made[-1].begin()
        return made[-1]

    yield begin
    for one in made:
        await one.close()


async def test_a_pod_that_ends_at_once_rings(far: Far, make: Callable[[bool], uplink.Uplink]) -> None:
    """And does not dial."""
    await make(True).told(3)
    assert (far.told, far.dialled, far.attached) == ([3], 0, ["ringer"])


async def test_where_nobody_answers_it_dials(far: Far, make: Callable[[bool], uplink.Uplink]) -> None:
    """Once."""
    far.is_answered = False
    await make(True).told(3)
    assert (far.told, far.dialled) == ([3], 1)


async def test_a_pod_that_lives_dials(far: Far, make: Callable[[bool], uplink.Uplink]) -> None:
    """First it rings, so that it is seen to run; at its end the link is used."""
    one = make(True)
    await far.is_dialled.wait()
    assert far.attached == ["ringer"]
    await one.told(9)
    assert (far.told, far.dialled) == ([9], 1)


async def test_a_pod_that_is_waited_for_dials_at_once(far: Far, make: Callable[[bool], uplink.Uplink]) -> None:
    """Nothing rings."""
    make(False)
    await far.is_dialled.wait()
    assert far.attached == []


@pytest.mark.parametrize(
    ("changes", "deadline", "expected"),
    [({}, None, True), ({"tty": True}, None, False), ({"stdin": True}, None, False), ({}, 5.0, False)],
)
def test_who_is_patient(changes: dict[str, bool], deadline: float | None, *, expected: bool) -> None:
    """Not one that a client attaches to, nor one whose deadline needs the kubelet's clock."""
    plan: Any = {"deadline_at": deadline, "containers": [{"tty": False, "stdin": False, **changes}]}
    assert uplink.is_patient(plan) is expected
