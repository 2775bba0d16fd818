"""Images go when there are too many, the longest unused first, and never one that somebody uses."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from hpk import errors, jobdir
from hpk.images import cache, collect, image, reference, registry, store, uses
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MIB = 1 << 20
POLICY = collect.ImageGCPolicy(capacity_bytes=100 * MIB)


def found(key: str, *, mib: int = 10, age: float = 1000.0, **how: Any) -> collect.Found:
    """An image that was last used so many seconds before 10,000."""
    return collect.Found(key=key, names=(key,), size_bytes=mib * MIB, used_at=10_000.0 - age, **how)


def due(*images: collect.Found, policy: collect.ImageGCPolicy = POLICY) -> list[str]:
    """Which must go now."""
    return [one.key for one in collect.due(images, policy, now=10_000.0)]


def test_nothing_goes_below_the_high_threshold() -> None:
    """However old it is."""
    assert due(*(found(str(number)) for number in range(8))) == []


def test_the_longest_unused_go_until_the_low_threshold() -> None:
    """90 of 100 is above 85; two of ten are enough for 80, and these are the oldest two that are big enough."""
    images = [found(str(number), age=1000 + number) for number in range(9)]
    assert due(*images) == ["8"]
    assert due(*images, found("new", mib=20, age=200)) == ["8", "7", "6"]


def test_what_is_used_pinned_or_new_stays() -> None:
    """Even if the threshold is not reached without it."""
    images = [
        found("used", mib=30, pods=("/p/1",)),
        found("pulled by hand", mib=30, is_pinned=True),
        found("new", mib=30, age=100),
        found("free", mib=5),
    ]
    assert due(*images) == ["free"]


def test_an_image_can_be_too_old() -> None:
    """Where that is set, whatever there is room for; the kubelet's imageMaximumGCAge."""
    policy = collect.ImageGCPolicy(capacity_bytes=100 * MIB, maximum_age_seconds=5000)
    assert due(found("old", age=6000), found("young"), found("used", age=6000, pods=("/p",)), policy=policy) == ["old"]


# With files.


class World:
    """A directory of images, and the pods of the control planes that use it."""

    def __init__(self, root: Path) -> None:
        self.root, self.images, self.pods = root, root / "images", root / "state/pods"
        self.pods.mkdir(parents=True)
        self.known: set[str] = set()
        self.cache = cache.Cache(self.images)
        self.meanwhile: Callable[[], object] = lambda: None
        self.policy = collect.ImageGCPolicy(capacity_bytes=4 * MIB, minimum_age_seconds=0)
        self.uses = uses.Uses(self.images, pods=self.pods, knows=self.known.__contains__)

    def collector(self, used_by: uses.Uses | None = None) -> collect.Collector:
        """Of our own control plane, or of another's view."""

        def sleep(_: float) -> None:
            self.meanwhile()

        return collect.Collector(self.cache, used_by or self.uses, self.policy, sleep=sleep)

    def add(self, letter: str, *, mib: int = 1, age: float = 10_000.0) -> str:
        """An image; its key."""
        manifest = f"sha256:{letter * 64}"
        made = self.root / "made"
        made.write_bytes(b"hsqs" + bytes(mib * MIB - 4))
        self.images.mkdir(exist_ok=True)
        self.cache.add(manifest, converted=made, config=image.ImageConfig())
        key = self.cache.file(manifest).stem
        self.cache.touch(key)
        os.utime(self.images / f"{key}.used", (time.time() - age, time.time() - age))
        return key

    def use(self, key: str, uid: str, *, has_job: bool = True, pods: Path | None = None) -> Path:
        """A pod uses it; its directory."""
        pod = (pods or self.pods) / uid
        if has_job:
            pod.mkdir(parents=True, exist_ok=True)
        self.uses.add(key, pod)
        return pod

    def left(self) -> set[str]:
        """The letters of the images that are there."""
        return {key[-1] for key in self.cache.sizes()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    """Empty."""
    return World(tmp_path)


def test_used_images_stay_and_the_rest_goes(world: World) -> None:
    """Of running pods, of pods that wait for a job, and of another control plane's; finished pods use nothing."""
    for letter in "abcdef":
        world.add(letter)
    keys = {key[-1]: key for key in world.cache.sizes()}
    world.use(keys["a"], "running")
    world.use(keys["b"], "waiting", has_job=False)
    world.known.add("waiting")
    other = world.root / "other/pods"
    world.use(keys["c"], "others", pods=other)
    world.use(keys["d"], "others-new", pods=other, has_job=False)
    finished = world.use(keys["e"], "finished")
    jobdir.write_json(jobdir.PodDirectory(str(finished)).report, {"finished_at": 1.0})
    world.use(keys["f"], "gone", has_job=False)
    gone = world.collector().collect()
    assert {one.key[-1] for one in gone} == {"e", "f"}
    assert world.left() == set("abcd")
    assert sorted(path.name.split("@")[1] for path in (world.images / "uses").iterdir()) == [
        "others",
        "others-new",
        "running",
        "waiting",
    ]


def test_uses_of_pods_that_are_gone_are_taken_back(world: World) -> None:
    """Soon, not only when something is collected: `hpk prune` knows no pods."""
    key = world.add("a")
    world.known.add("waiting")
    for uid, has_job in (("running", True), ("waiting", False), ("gone", False)):
        world.use(key, uid, has_job=has_job)
    world.uses.tidy()
    assert sorted(path.name for path in (world.images / "uses").iterdir()) == [f"{key}@running", f"{key}@waiting"]


@pytest.mark.parametrize("how", ["tidied", "forgotten"])
def test_what_an_earlier_kubelet_said_is_taken_back_as_well(world: World, how: str) -> None:
    """Pods live on while the control plane starts anew, and are deleted then; others' uses stay."""
    key = world.add("a")
    gone = world.use(key, "gone", has_job=False)
    world.use(key, "runs")
    world.use(key, "others", pods=world.root / "other/pods", has_job=False)
    later = uses.Uses(world.images, pods=world.pods, knows=world.known.__contains__)
    if how == "tidied":
        later.tidy()
    else:
        later.forget(gone)
    assert sorted(path.name for path in (world.images / "uses").iterdir()) == [f"{key}@others", f"{key}@runs"]


def test_another_control_plane_removes_nothing_of_ours(world: World) -> None:
    """It knows none of our pods; their directories speak for them, and for a while what was said of one without."""
    keys = [world.add(letter, mib=2) for letter in "abc"]
    world.use(keys[0], "ours")
    world.use(keys[1], "waiting", has_job=False)
    theirs = uses.Uses(world.images, pods=world.root / "theirs/pods", knows=lambda _: False)
    assert [one.key for one in world.collector(theirs).collect()] == [keys[2]]
    os.utime(world.images / "uses" / f"{keys[1]}@waiting", (1.0, 1.0))
    world.add("d", mib=2)
    assert keys[1] in {one.key for one in world.collector(theirs).collect()}
    assert keys[0] in world.cache.sizes()


def test_a_pod_that_comes_meanwhile_keeps_its_image(world: World) -> None:
    """Between the choice and the removal: the image is out of sight for a moment, and back."""
    key = world.add("a", mib=4)
    world.known.add("late")
    world.meanwhile = lambda: world.use(key, "late", has_job=False)
    assert world.collector().collect() == []
    assert world.left() == {"a"}


def test_what_is_pinned_meanwhile_stays(world: World) -> None:
    """`hpk pull` has told its user that it is there."""
    key = world.add("a", mib=4)
    wanted: Any = reference.parse("ctl:5000/a:1")
    stored = world.cache.load(f"sha256:{'a' * 64}", reference=str(wanted), digest=f"sha256:{'a' * 64}")
    assert stored is not None
    world.meanwhile = lambda: world.cache.pin(wanted, stored)
    assert world.collector().collect() == []
    assert key in world.cache.sizes()


def test_what_a_process_that_died_has_condemned_and_a_pod_uses_is_taken_back(world: World) -> None:
    """It died before it looked again; the pod runs for days."""
    key = world.add("a")
    world.use(key, "running")
    assert world.cache.condemn(key)
    collector = world.collector()
    collector._clock = lambda: time.time() + 2 * collect.ORPHAN_SECONDS
    assert collector.collect() == []
    assert key in world.cache.sizes()


def test_what_was_pulled_again_meanwhile_stays(world: World) -> None:
    """The collector removes only what it has taken out of sight itself."""
    world.add("a", mib=4)
    world.meanwhile = lambda: world.add("a", mib=4)
    assert world.collector().collect() == []
    assert world.left() == {"a"}
    assert not list(world.images.glob("*.condemned"))


def test_nothing_but_the_caches_own_files_is_touched(world: World) -> None:
    """A user's SIF file beside them stays, and a pull under way; what a dead process has left goes after an hour."""
    world.add("a", mib=4)
    (world.images / "mine.sif").write_bytes(b"SIF")
    (world.images / "tmp/host-1-0").mkdir(parents=True)
    orphan = world.images / f"sha256-{'e' * 64}.sqfs"
    orphan.write_bytes(b"hsqs")
    collector = world.collector()
    collector.collect()
    assert orphan.exists()
    collector._clock = lambda: time.time() + 2 * collect.ORPHAN_SECONDS
    collector.collect()
    assert sorted(path.name for path in world.images.iterdir()) == ["mine.sif", "tmp"]


def test_an_unreadable_directory_of_a_pod_is_a_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not say is no answer."""
    key = world.add("a", mib=4)
    pod = world.use(key, "p")

    def stat(self: Path, **_: Any) -> os.stat_result:
        if self == pod:
            raise OSError(116, "Stale file handle")
        return os.stat(self)  # noqa: PTH116 - what is replaced here

    monkeypatch.setattr(type(pod), "stat", stat)
    assert world.collector().collect() == []


@pytest.fixture
def images(tmp_path: Path, client: registry.Registry) -> store.ImageStore:
    """A store that may remove what nobody uses."""
    policy = collect.ImageGCPolicy(capacity_bytes=1, minimum_age_seconds=0)
    made = store.ImageStore(tmp_path / "images", client=client, policy=policy)
    assert made.collector is not None
    made.collector._sleep = lambda _: None
    return made


LAYER = fake.layer(fake.Member(name="a", text=b"a"))
OTHER = fake.layer(fake.Member(name="b", text=b"b"))


async def test_a_pods_image_is_kept_until_it_has_ended(
    server: fake.FakeRegistry, images: store.ImageStore, tmp_path: Path
) -> None:
    """From the moment that its pull is over; a pull by hand is kept for ever, or until it is asked for."""
    for tag, layer in (("1", LAYER), ("2", OTHER)):
        server.push("a/b", tag=tag, layers=(layer,))
    assert images.collector is not None
    pod = tmp_path / "state/pods/uid"
    pod.mkdir(parents=True)
    await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent", pod=pod)
    await images.ensure(f"{server.host}/a/b:2", policy="Always", is_pinned=True)
    assert images.collector.collect() == []
    jobdir.write_json(jobdir.PodDirectory(str(pod)).report, {"finished_at": 1.0})
    assert [one.names for one in images.collector.collect()] == [(f"{server.host}/a/b:1",)]
    await images.ensure(f"{server.host}/a/b:2", policy="Always")
    assert images.collector.collect() == []
    assert [one.is_pinned for one in images.collector.images()] == [True]


async def test_a_full_disk_makes_room_once(
    server: fake.FakeRegistry, images: store.ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody uses goes, and the pull is made again; where nothing can go, the pod is told."""
    server.push("a/b", tag="1", layers=(LAYER,))
    server.push("a/b", tag="2", layers=(OTHER,))
    await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    write, fails = registry._Sink.write, [True, False, True, True]

    def full(self: registry._Sink, data: bytearray) -> None:
        if data and fails.pop(0):
            raise OSError(122, os.strerror(122))
        write(self, data)

    monkeypatch.setattr(registry._Sink, "write", full)
    await images.ensure(f"{server.host}/a/b:2", policy="IfNotPresent", is_pinned=True)
    assert [one.names for one in await images.list()] == [
        (f"{server.host}/a/b@{server_digest(images)}", f"{server.host}/a/b:2")
    ]
    with pytest.raises(errors.Retryable, match="quota exceeded; free some space there"):
        await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")


def server_digest(images: store.ImageStore) -> str:
    """Of the only image that is left."""
    (digest,) = {stored.digest for stored in images._cache.references()}
    return digest


async def test_an_image_that_was_removed_as_it_was_found_is_told(
    server: fake.FakeRegistry, images: store.ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod waits and asks again; its job is not submitted without an image."""
    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    await images.ensure(name, policy="IfNotPresent")
    monkeypatch.setattr(images._cache, "is_there", lambda _: False)
    with pytest.raises(errors.Retryable, match="was removed from"):
        await images.ensure(name, policy="IfNotPresent", pod=tmp_path / "pods/p")


async def test_a_pull_by_hand_whose_image_was_removed_as_it_was_found_is_told(
    server: fake.FakeRegistry, images: store.ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collector that had condemned it before it was pinned."""
    server.push("a/b", tag="1", layers=(LAYER,))
    monkeypatch.setattr(images._cache, "is_there", lambda _: False)
    with pytest.raises(errors.Retryable, match="was removed from"):
        await images.ensure(f"{server.host}/a/b:1", policy="Always", is_pinned=True)


async def test_images_of_a_directory_that_is_not_ours_can_be_used(
    server: fake.FakeRegistry, images: store.ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a site keeps them for its users nothing is removed by us, and nobody need be told of a use."""

    def refuse(*_: object) -> None:
        raise OSError(30, os.strerror(30))

    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    await images.ensure(name, policy="IfNotPresent")
    monkeypatch.setattr(uses.Uses, "add", refuse)
    found = await images.ensure(name, policy="IfNotPresent", pod=tmp_path / "pods/p")
    assert not found.was_pulled
