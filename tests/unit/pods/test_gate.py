"""Trouble of one pod speaks for many: few calls of sbatch, nothing lost, and the pauses end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors
from hpk.kube import v1
from hpk.pods import admit, gate, lanes

if TYPE_CHECKING:
    from collections.abc import Callable


def pod(name: str = "p", *, owner: str = "rs", flags: str = "", **spec: Any) -> v1.Pod:
    """A pod of a ReplicaSet, or of nobody."""
    owners = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}] if owner else []
    annotations = {"slurm.hpk.io/flags": flags} if flags else {}
    meta = {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owners, "annotations": annotations}
    return v1.pod({"metadata": meta, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}})


def lanes_of(one: v1.Pod) -> tuple[lanes.Key, ...]:
    """The lanes of a pod where the settings have no flags."""
    return admit.derive(one, admit.Cluster(name="hpk")).lanes


class World:
    """A gate with a clock of the test's, and who was woken."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.woken: list[str] = []
        self.calls = 0
        self.gate = gate.Gate(on_open=self.woken.append, clock=lambda: self.now)

    async def submit(self, uid: str, wanted: tuple[lanes.Key, ...], error: errors.HpkError | None = None) -> str:
        """One pod's try: ``held``, ``refused`` or ``taken``."""
        try:
            self.gate.check(uid, wanted)
            async with self.gate.turn(uid, wanted):
                self.calls += 1
                await asyncio.sleep(0)
                if error is not None:
                    raise error
        except gate.LaneClosed:
            return "held"
        except errors.HpkError:
            return "refused"
        finally:
            self.gate.leave(uid, wanted)
        return "taken"


@pytest.fixture
def world() -> World:
    """A new gate."""
    return World()


REFUSED = errors.JobRefused("Invalid account")
LIMIT = errors.SlurmUnavailable("AssocMaxSubmitJobLimit")
ALIKE = lanes_of(pod())
NOBODYS = lanes_of(pod(owner=""))


async def test_of_fifty_replicas_that_sbatch_refuses_one_asks(world: World) -> None:
    """All at once, and yet one sbatch; the others wait for the pause, in sbatch's own words."""
    answers = await asyncio.gather(*(world.submit(f"p{n}", ALIKE, REFUSED) for n in range(50)))
    assert (world.calls, answers.count("refused"), answers.count("held")) == (1, 1, 49)
    with pytest.raises(gate.LaneClosed, match="Invalid account") as caught:
        world.gate.check("p1", ALIKE)
    assert caught.value.seconds == gate.PAUSES["refused"].first_seconds


async def test_only_the_first_in_line_comes_back_when_the_pause_is_over(world: World) -> None:
    """The others are woken in their turn; by themselves they look much later, for the case that nobody is left."""
    await asyncio.gather(*(world.submit(f"p{n}", NOBODYS, LIMIT) for n in range(50)))
    pauses = {}
    for uid in (f"p{n}" for n in range(1, 50)):
        with pytest.raises(gate.LaneClosed) as caught:
            world.gate.check(uid, NOBODYS)
        pauses[uid] = caught.value.seconds
    assert [uid for uid, pause in pauses.items() if pause < gate.PROBE_SECONDS] == ["p1"]
    world.gate.forget("p1")
    assert world.woken == ["p2"]


async def test_the_end_of_one_job_costs_one_sbatch(world: World) -> None:
    """Of 300 pods that a limit holds one is woken for each job that ends; the lane stays closed to all others."""
    await asyncio.gather(*(world.submit(f"p{n}", NOBODYS, LIMIT) for n in range(301)))
    before = world.calls
    for count in range(1, 11):
        world.gate.job_ended()
        assert world.woken == [f"p{n}" for n in range(1, count + 1)]
        assert await world.submit(world.woken[-1], NOBODYS) == "taken"
        assert await world.submit("new", NOBODYS) == "held"
    assert world.calls == before + 10


async def test_when_a_limit_has_passed_one_goes_then_two_then_four(world: World) -> None:
    """How far it has passed nobody knows: where it has not, few learn of it."""
    await asyncio.gather(*(world.submit(f"p{n}", NOBODYS, LIMIT) for n in range(20)))
    world.now += gate.PAUSES["limits"].first_seconds
    assert await world.submit("p1", NOBODYS) == "taken"
    sizes, done = [], 0
    while len(world.woken) > done:
        sizes.append(len(world.woken) - done)
        for uid in world.woken[done : done + sizes[-1]]:
            assert await world.submit(uid, NOBODYS) == "taken"
            done += 1
    assert sizes[0] == 1
    assert sorted(world.woken) == sorted(f"p{n}" for n in range(2, 20))


async def test_a_place_is_not_lost_with_the_pod_that_was_called(world: World) -> None:
    """It was deleted, or its image is missing: the next one is called."""
    await asyncio.gather(*(world.submit(f"p{n}", NOBODYS, LIMIT) for n in range(5)))
    world.gate.job_ended()
    world.gate.forget("p1")
    world.gate.check("p2", NOBODYS)
    world.gate.leave("p2", NOBODYS)
    assert world.woken == ["p1", "p2", "p3"]
    assert await world.submit("p3", NOBODYS) == "taken"
    assert await world.submit("p4", NOBODYS) == "held"


async def test_when_the_one_that_went_ahead_fails_the_others_need_not_wait_for_it(world: World) -> None:
    """They are told: the next pause is shorter than what it might have taken."""
    assert await world.submit("p1", NOBODYS, LIMIT) == "refused"
    world.now += gate.PAUSES["limits"].first_seconds
    world.gate.check("p1", NOBODYS)  # and is on its way to sbatch
    with pytest.raises(gate.LaneClosed) as caught:
        world.gate.check("p2", NOBODYS)
    assert caught.value.seconds == gate.PROBE_SECONDS
    with pytest.raises(errors.SlurmUnavailable):
        async with world.gate.turn("p1", NOBODYS):
            raise LIMIT
    assert world.woken == ["p2"]
    with pytest.raises(gate.LaneClosed) as caught:
        world.gate.check("p2", NOBODYS)
    assert caught.value.seconds == 2 * gate.PAUSES["limits"].first_seconds


async def test_after_each_pause_one_more_asks_and_the_pauses_grow(world: World) -> None:
    """In an hour of refusals sbatch is called some fifteen times, whatever the number of replicas."""
    for _ in range(3600):
        for name in ("a", "b", "c"):
            await world.submit(name, ALIKE, REFUSED)
        world.now += 1
    assert 10 <= world.calls <= 17


async def test_what_was_mended_opens_the_lane_for_all(world: World) -> None:
    """The first that is taken wakes those that were held, and they go at once."""
    await asyncio.gather(*(world.submit(f"p{n}", ALIKE, REFUSED) for n in range(5)))
    world.now += 10
    assert await world.submit("p1", ALIKE) == "taken"
    assert sorted(world.woken) == ["p2", "p3", "p4"]
    assert await asyncio.gather(*(world.submit(uid, ALIKE) for uid in world.woken)) == ["taken"] * 3


async def test_replicas_under_a_submit_limit_all_run_in_the_end(world: World) -> None:
    """Fifty pods, five jobs at a time: all are taken, with few refusals on the way."""
    waiting, running, refusals = [f"p{n}" for n in range(50)], 0, 0
    while waiting:
        answers = []
        for uid in waiting:
            full = running >= 5
            answers.append(await world.submit(uid, ALIKE, LIMIT if full else None))
            running += answers[-1] == "taken"
            refusals += answers[-1] == "refused"
        waiting = [uid for uid, answer in zip(waiting, answers, strict=True) if answer != "taken"]
        world.now += 15
        running = 0
        world.gate.job_ended()
    assert world.calls == 50 + refusals
    assert refusals <= 10


async def test_at_a_limit_that_stays_sbatch_is_called_once_a_minute(world: World) -> None:
    """Pods that run for days do not make the others ask all the time."""
    for _ in range(3600):
        for uid in ("a", "b", "c"):
            await world.submit(uid, ALIKE, LIMIT)
        world.now += 1
    assert world.calls <= 70


async def test_the_end_of_a_job_lets_one_try_before_the_pause_is_over(world: World) -> None:
    """A place has become free; the one that is woken takes it."""
    await asyncio.gather(*(world.submit(uid, NOBODYS, LIMIT) for uid in "abc"))
    world.gate.job_ended()
    (woken,) = world.woken
    assert await world.submit(woken, NOBODYS) == "taken"


async def test_one_that_goes_ahead_and_gives_up_is_followed_by_another(world: World) -> None:
    """Its image is missing, say: the lane does not wait for it."""
    await asyncio.gather(*(world.submit(uid, NOBODYS, LIMIT) for uid in "abc"))
    world.now += 2
    world.gate.check("a", NOBODYS)
    with pytest.raises(gate.LaneClosed):
        world.gate.check("b", NOBODYS)
    world.gate.leave("a", NOBODYS)
    world.gate.check("b", NOBODYS)


@pytest.mark.parametrize(
    "other",
    [
        lambda: lanes_of(pod(owner="other")),
        lambda: lanes_of(pod(flags="--account=right")),
        lambda: lanes_of(pod(containers=[{"name": "c", "resources": {"requests": {"cpu": "7"}}}])),
        lambda: NOBODYS,
    ],
    ids=["other controller", "other flags", "other requests", "no controller"],
)
async def test_a_refusal_speaks_for_pods_alike_only(world: World, other: Callable[[], tuple[lanes.Key, ...]]) -> None:
    """Whatever sbatch decides by is in the key."""
    await world.submit("a", ALIKE, REFUSED)
    assert await world.submit("b", other()) == "taken"


async def test_pods_that_fail_at_once_make_the_next_ones_wait(world: World) -> None:
    """A script that never comes up does not fill the queue with jobs; many that failed together count as one."""
    for uid in "abc":
        assert await world.submit(uid, ALIKE) == "taken"
    for _ in "abc":
        world.gate.failed_at_once(ALIKE, "pod failed at once")
    assert [await world.submit(uid, ALIKE) for uid in "de"] == ["held", "held"]
    world.now += 10
    assert [await world.submit(uid, ALIKE) for uid in "de"] == ["taken", "held"]
    world.gate.failed_at_once(ALIKE, "pod failed at once")
    world.now += 19
    assert await world.submit("e", ALIKE) == "held"
    world.now += 1
    assert await world.submit("e", ALIKE) == "taken"


async def test_when_the_one_that_went_ahead_lives_all_others_go(world: World) -> None:
    """One bad minute of a node does not make fifty replicas come one by one; the next trouble counts on."""
    world.gate.failed_at_once(ALIKE, "pod failed at once")
    world.now += 10
    assert [await world.submit(uid, ALIKE) for uid in "abc"] == ["taken", "held", "held"]
    world.now += gate.AT_ONCE_SECONDS
    assert [await world.submit(uid, ALIKE) for uid in "bc"] == ["taken", "taken"]
    world.gate.failed_at_once(ALIKE, "pod failed at once")
    world.now += 19
    assert await world.submit("d", ALIKE) == "held"


async def test_the_webhook_denies_while_the_pause_lasts(world: World) -> None:
    """So that the controller's own back-off works; a mere limit denies nobody."""
    await world.submit("a", ALIKE, LIMIT)
    assert world.gate.denial(ALIKE) is None
    world.now += 2
    await world.submit("a", ALIKE, REFUSED)
    assert world.gate.denial(ALIKE) == "Invalid account"
    world.now += 10
    assert world.gate.denial(ALIKE) is None


async def test_the_gate_forgets_lanes_that_nobody_uses(world: World) -> None:
    """Memory does not grow with the controllers that there ever were."""
    for n in range(3 * gate.MOST_LANES):
        await world.submit("a", lanes_of(pod(owner=f"rs{n}")))
    assert len(world.gate._lanes) <= gate.MOST_LANES
