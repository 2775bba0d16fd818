"""Images are pulled once, kept by digest, and found again without the network."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import socket
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from hpk import errors
from hpk.images import bounds, cache, image, reference, registry, store, workspace
from tests import waiting
from tests.fakes import registry as fake
from tests.fakes import sif as fake_sif

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("mksquashfs") is None, reason="needs squashfs-tools")

LAYER = fake.layer(fake.Member(name="hello", text=b"hello"))
CONFIG = {"Entrypoint": ["/bin/a"], "Cmd": ["b"], "Env": ["PATH=/bin"], "WorkingDir": "/w", "User": "1000"}


@pytest.fixture
async def images(tmp_path: Path, client: registry.Registry) -> AsyncIterator[store.ImageStore]:
    """A store in an empty directory."""
    async with store.ImageStore(tmp_path / "images", client=client) as made:
        yield made


def content(found: image.Image) -> str:
    """The text of ``hello`` in the image."""
    argv = ["unsquashfs", "-o", str(found.offset), "-cat", str(found.file), "hello"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


async def test_an_image_is_pulled_and_converted(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """The file has the layers' content, the config is the image's, the id is what the kubelet shows."""
    digest = server.push("a/b", tag="1", layers=(LAYER,), config=CONFIG)
    started: list[str] = []
    name = f"{server.host}/a/b:1"
    found = await images.ensure(name, policy="IfNotPresent", on_pull=lambda: started.append("pull"))
    assert content(found) == "hello"
    assert found == image.Image(
        reference=name,
        image_id=f"{server.host}/a/b@{digest}",
        file=found.file,
        offset=0,
        size_bytes=found.file.stat().st_size,
        config=image.ImageConfig(
            entrypoint=("/bin/a",),
            command=("b",),
            env=(("PATH", "/bin"),),
            working_dir="/w",
            user="1000",
            architecture=image.host_architecture(),
        ),
        was_pulled=True,
        seconds=found.seconds,
    )
    assert found.file.name == f"sha256-{digest.removeprefix('sha256:')}.sqfs"
    assert started == ["pull"]


async def test_an_image_that_announces_too_much_is_not_fetched(
    server: fake.FakeRegistry, images: store.ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its layers stay where they are, and its pods say why."""
    monkeypatch.setattr(bounds.check_layers, "__defaults__", (bounds.Bounds(content_bytes=1),))
    server.push("a/b", tag="1", layers=(LAYER,))
    with pytest.raises(errors.ImageRefused, match="the image's layers take"):
        await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    assert server.count("/blobs/") == 0


async def test_only_the_user_can_read(server: fake.FakeRegistry, images: store.ImageStore, tmp_path: Path) -> None:
    """Files are 0600 and directories 0700; nothing temporary stays."""
    server.push("a/b", tag="1", layers=(LAYER,))
    await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    found = {path.relative_to(tmp_path): path for path in sorted(tmp_path.rglob("*"))}  # noqa: ASYNC240 - a test waits
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.values() if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.values() if path.is_dir()} == {0o700}
    assert not [name for name in found if name.parts[1:-1] == ("tmp",)]


async def test_what_is_there_needs_no_network(
    server: fake.FakeRegistry, images: store.ImageStore, client: registry.Registry, tmp_path: Path
) -> None:
    """Not in this process, nor in the next; and nobody is told of a pull."""
    server.push("a/b", tag="1", layers=(LAYER,), config=CONFIG)
    name = f"{server.host}/a/b:1"
    first = await images.ensure(name, policy="IfNotPresent")
    asked = len(server.requests)
    for images_again in (images, store.ImageStore(tmp_path / "images", client=client)):
        again = await images_again.ensure(name, policy="IfNotPresent", on_pull=pytest.fail)
        assert (again.was_pulled, again.image_id, again.config) == (False, first.image_id, first.config)
        assert await images_again.ensure(name, policy="Never")
    assert len(server.requests) == asked


async def test_an_image_that_came_by_its_tag_is_found_by_its_digest(
    server: fake.FakeRegistry, images: store.ImageStore
) -> None:
    """The imageID of a pod's status starts the next pod without the registry, also when the tag has moved on."""
    digest = server.push("a/b", tag="1", layers=(LAYER,))
    first = await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    server.push("a/b", tag="1", layers=(fake.layer(fake.Member(name="hello", text=b"new")),))
    moved = await images.ensure(f"{server.host}/a/b:1", policy="Always")
    server.requests.clear()
    for name in (first.image_id, f"{server.host}/a/b:never@{digest}"):
        again = await images.ensure(name, policy="IfNotPresent", on_pull=pytest.fail)
        assert (again.image_id, again.file) == (first.image_id, first.file)
    assert (await images.ensure(f"{server.host}/a/b:1", policy="Never")).file == moved.file
    with pytest.raises(errors.ImageRefused, match="Never"):
        await images.ensure(f"{server.host}/other@{digest}", policy="Never")
    assert server.requests == []
    assert {one.names for one in await images.list()} == {(first.image_id,), (moved.image_id, f"{server.host}/a/b:1")}


async def test_what_another_process_has_pulled_counts_at_once(
    server: fake.FakeRegistry, images: store.ImageStore, client: registry.Registry, tmp_path: Path
) -> None:
    """Where only the login node reaches the registry, `hpk pull` there is how a tag moves on."""
    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    first = await images.ensure(name, policy="IfNotPresent")
    server.push("a/b", tag="1", layers=(fake.layer(fake.Member(name="hello", text=b"new")),))
    pulled = await store.ImageStore(tmp_path / "images", client=client).ensure(name, policy="Always", is_pinned=True)
    again = await images.ensure(name, policy="IfNotPresent", on_pull=pytest.fail)
    assert (again.image_id, content(again)) == (pulled.image_id, "new")
    assert again.image_id != first.image_id


async def test_a_warm_image_costs_less_than_a_millisecond(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """The best of many: other work on the machine is not this program's cost."""
    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    await images.ensure(name, policy="IfNotPresent")
    assert min([(await images.ensure(name, policy="IfNotPresent")).seconds for _ in range(50)]) < 0.001


@pytest.mark.parametrize(("tag", "policy"), [("none", "IfNotPresent"), ("1", "Always")])
async def test_a_pull_is_told_before_the_registry_is_asked(
    server: fake.FakeRegistry, images: store.ImageStore, tag: str, policy: str
) -> None:
    """It may not answer for long, or not have the image; as a kubelet (pkg/kubelet/images/image_manager.go)."""
    server.push("a/b", tag="1", layers=(LAYER,))
    await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    server.requests.clear()
    asked: list[int] = []
    with contextlib.suppress(errors.ImageRefused):
        name = f"{server.host}/a/b:{tag}"
        await images.ensure(name, policy=policy, on_pull=lambda: asked.append(len(server.requests)))
    assert asked == [0]
    assert server.requests


async def test_always_asks_and_fetches_only_what_changed(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """One HEAD if the digest is the same; the new image if it is not, and the old file stays for who runs it."""
    server.push("a/b", tag="latest", layers=(LAYER,))
    name = f"{server.host}/a/b"
    first = await images.ensure(name, policy="Always")
    server.requests.clear()
    again = await images.ensure(name, policy="Always")
    assert (again.was_pulled, server.requests) == (False, ["HEAD /v2/a/b/manifests/latest"])
    server.push("a/b", tag="latest", layers=(fake.layer(fake.Member(name="hello", text=b"new")),))
    new = await images.ensure(name, policy="Always")
    assert (content(new), content(first), new.was_pulled) == ("new", "hello", True)
    assert (await images.ensure(name, policy="IfNotPresent")).image_id == new.image_id


async def test_images_of_one_name_from_two_places_do_not_mix(
    server: fake.FakeRegistry, images: store.ImageStore
) -> None:
    """The same last segment, tag and all: each has its own content and id."""
    server.push("a/x", tag="1", layers=(LAYER,))
    server.push("b/x", tag="1", layers=(fake.layer(fake.Member(name="hello", text=b"other")),))
    async with fake.FakeRegistry() as second:
        second.push("a/x", tag="1", layers=(fake.layer(fake.Member(name="hello", text=b"third")),))
        names = [f"{server.host}/a/x:1", f"{server.host}/b/x:1", f"{second.host}/a/x:1"]
        found = [await images.ensure(name, policy="IfNotPresent") for name in names]
    assert [content(one) for one in found] == ["hello", "other", "third"]
    assert len({one.image_id for one in found}) == 3


async def test_one_image_under_two_names_is_converted_once(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """The file is the same, each name keeps its own id, and the second name was checked with the registry."""
    digest = server.push("a/x", tag="1", layers=(LAYER,))
    server.push("b/x", tag="1", layers=(LAYER,))
    first = await images.ensure(f"{server.host}/a/x:1", policy="IfNotPresent")
    second = await images.ensure(f"{server.host}/b/x:1", policy="IfNotPresent")
    assert first.file == second.file
    assert second.image_id == f"{server.host}/b/x@{digest}"
    assert server.count("HEAD /v2/b/x") == 1
    assert server.count(fake.digest_of(LAYER)) == 1
    with pytest.raises(errors.ImageRefused, match="not found"):
        await images.ensure(f"{server.host}/c/x@{digest}", policy="IfNotPresent")
    assert await images.list() == (
        store.CachedImage(
            names=(
                f"{server.host}/a/x@{digest}",
                f"{server.host}/a/x:1",
                f"{server.host}/b/x@{digest}",
                f"{server.host}/b/x:1",
            ),
            size_bytes=first.size_bytes,
        ),
    )


async def test_many_pods_share_one_pull(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """A hundred that start together fetch each blob once, and all are told that a pull started."""
    server.push("a/b", tag="1", layers=(LAYER,))
    told: list[int] = []
    found = await asyncio.gather(
        *(
            images.ensure(f"{server.host}/a/b:1", policy="Always", on_pull=lambda number=number: told.append(number))  # type: ignore[misc]
            for number in range(100)
        )
    )
    assert len({one.file for one in found}) == 1
    assert server.count("blobs") == 2
    assert sorted(told) == list(range(100))


async def test_who_leaves_does_not_stop_the_others(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """A deleted pod's wait ends at once; the pull goes on for the other, and stops when nobody is left."""
    server.push("a/b", tag="1", layers=(LAYER,))
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: Any) -> Any:
        arrived.set()
        await go_on.wait()
        return web.Response(body=LAYER)

    server.answer(fake.digest_of(LAYER), slow, slow)
    name = f"{server.host}/a/b:1"
    first, second = (asyncio.create_task(images.ensure(name, policy="IfNotPresent")) for _ in range(2))
    await arrived.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    assert (await second).was_pulled

    shutil.rmtree(images._directory)
    arrived.clear()
    go_on.clear()
    third = asyncio.create_task(images.ensure(name, policy="IfNotPresent"))
    await arrived.wait()
    third.cancel()
    with pytest.raises(asyncio.CancelledError):
        await third
    go_on.set()
    assert list((images._directory / "tmp").iterdir()) == []
    assert (await images.ensure(name, policy="IfNotPresent")).was_pulled


@pytest.mark.parametrize("damage", ["missing", "cut", "overwritten", "no-meta"])
async def test_damaged_files_are_pulled_again(server: fake.FakeRegistry, images: store.ImageStore, damage: str) -> None:
    """A file that is gone, shorter, or something else does not reach a pod."""
    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    found = await images.ensure(name, policy="IfNotPresent")
    match damage:
        case "missing":
            found.file.unlink()
        case "cut":
            os.truncate(found.file, 1000)
        case "overwritten":
            found.file.write_bytes(b"x" * found.size_bytes)
        case _:
            found.file.with_suffix(".json").write_text("{")
            images = store.ImageStore(images._directory, client=images._registry)
    again = await images.ensure(name, policy="IfNotPresent")
    assert (again.was_pulled, content(again)) == (True, "hello")


async def test_never_means_never(server: fake.FakeRegistry, images: store.ImageStore) -> None:
    """No request is made, and the refusal is the kubelet's."""
    server.push("a/b", tag="1", layers=(LAYER,))
    name = f"{server.host}/a/b:1"
    with pytest.raises(errors.ImageRefused) as caught:
        await images.ensure(name, policy="Never")
    assert str(caught.value) == f'Container image "{name}" is not present with pull policy of Never'
    assert caught.value.reason == "ErrImageNeverPull"
    assert server.requests == []


async def test_failures_name_the_image_and_are_not_remembered(
    server: fake.FakeRegistry, images: store.ImageStore
) -> None:
    """The text is containerd's; the next attempt asks again."""
    name = f"{server.host}/a/b:1"
    with pytest.raises(errors.ImageRefused) as caught:
        await images.ensure(name, policy="IfNotPresent")
    assert str(caught.value) == (
        f'failed to pull and unpack image "{name}": failed to resolve reference "{name}": {name}: not found'
    )
    server.push("a/b", tag="1", layers=(LAYER,))
    assert (await images.ensure(name, policy="IfNotPresent")).was_pulled


async def test_a_layer_that_breaks_the_rules_is_the_images_fault(
    server: fake.FakeRegistry, images: store.ImageStore
) -> None:
    """Refused with the reason from inside the converter."""
    server.push("a/b", tag="1", layers=(fake.layer(fake.hard_link("a", "nothing")),))
    with pytest.raises(errors.ImageRefused, match="failed to extract layer: hard link 'a' points to nothing"):
        await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")


async def test_a_full_disk_is_said(
    server: fake.FakeRegistry, images: store.ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is this machine's trouble, worth another try, and the text says what would help."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    server.push("a/b", tag="1", layers=(LAYER,))
    monkeypatch.setattr(registry._Sink, "write", full)
    with pytest.raises(
        errors.Retryable, match=r"No space left on device; free some space there \(hpk prune\), or let HPK_IMAGES"
    ):
        await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")


async def test_the_loop_does_not_wait_for_a_conversion(
    server: fake.FakeRegistry, images: store.ImageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While megabytes are fetched and compressed, the kubelet answers: here the compression waits for it to do so.

    Nor does any callback work long, by its thread's own time: how late a loaded machine lets it run is not its doing.
    """
    programs, began, goes_on = tmp_path / "programs", tmp_path / "began", tmp_path / "goes-on"
    programs.mkdir()
    for pipe in (began, goes_on):
        os.mkfifo(pipe)
    held = f'echo >{began}; read _ <{goes_on}; exec {shutil.which("mksquashfs")} "$@"'
    (programs / "mksquashfs").write_text(f"#!/bin/sh\n{held}\n")
    (programs / "mksquashfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    members = [fake.Member(name=f"f{number}", text=os.urandom(1 << 20)) for number in range(8)]
    server.push("a/b", tag="1", layers=(fake.tar(*members),))
    busy, run = [], asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        busy.append(time.thread_time() - before)

    async def answer() -> None:
        await asyncio.to_thread(began.read_bytes)
        await waiting.turns()
        await asyncio.to_thread(goes_on.write_bytes, b"\n")

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    answering = asyncio.create_task(answer())
    await images.ensure(f"{server.host}/a/b:1", policy="IfNotPresent")
    await answering
    assert max(busy) < 0.1


async def test_sif_files_are_used_where_they_lie(images: store.ImageStore, tmp_path: Path) -> None:
    """Nothing is copied; the id names the file and its content; the header is read again when the file changes."""
    path = tmp_path / "x.sif"
    with pytest.raises(errors.ImageRefused, match=r"No such file.*HPK_BIND"):
        await images.ensure(str(path), policy="Always")
    path.write_bytes(fake_sif.sif_bytes())
    found = await images.ensure(f"file://{path}", policy="Always", on_pull=pytest.fail)
    assert (found.file, found.was_pulled, found.size_bytes) == (path, False, path.stat().st_size)
    assert found.offset > 0
    assert found.image_id.startswith(f"file://{path}@sha256:")
    path.write_bytes(fake_sif.sif_bytes(root=b"hsqs" + bytes(70_000)))
    assert (await images.ensure(str(path), policy="Never")).image_id != found.image_id


def test_what_crashed_pulls_left_is_removed(tmp_path: Path) -> None:
    """Of this host's dead processes after an hour, of other hosts after days; a living pull is left alone.

    One of another container may have a process that is not seen here: what it writes tells that it lives.
    """
    mine, dead, old, other, unseen = (
        tmp_path / "tmp" / name
        for name in (
            f"{socket.gethostname()}-{os.getpid()}-7",
            f"{socket.gethostname()}-4194304-0",
            "far-away-1-0",
            "far-away-2-0",
            f"{socket.gethostname()}-4194305-0",
        )
    )
    for path, age in ((mine, 7200), (dead, 7200), (old, 3 * 86400), (other, 7200), (unseen, 7200)):
        path.mkdir(parents=True)
        (path / "file").touch()
        for one in (path / "file", path):
            os.utime(one, (time.time() - age,) * 2)
    os.utime(unseen / "file")
    with workspace.made(tmp_path) as directory:
        assert set((tmp_path / "tmp").iterdir()) == {mine, other, unseen, directory}
    assert not directory.exists()


def test_pulls_of_two_containers_share_no_directory(tmp_path: Path) -> None:
    """Their processes have the same few numbers, each in a namespace of its own, and the host's name."""
    with workspace.made(tmp_path) as one, workspace.made(tmp_path) as other:
        assert one != other


def test_a_person_is_told_a_digest_only_where_there_is_no_tag(tmp_path: Path) -> None:
    """An image has the names by which it can be asked for; a digest beside its tag says nothing new."""
    made = cache.Cache(tmp_path)
    digests = [f"sha256:{number:064d}" for number in range(2)]
    for digest in digests:
        made.link(reference.Reference(registry="r:5000", repository="a/b", tag="1"), digest=digest, manifest=digest)
    names, _ = made.names()
    assert names == {
        digests[0].replace(":", "-"): [f"r:5000/a/b@{digests[0]}"],
        digests[1].replace(":", "-"): ["r:5000/a/b:1"],
    }


def test_a_reference_file_of_another_name_is_not_believed(tmp_path: Path) -> None:
    """The index is by a hash; the name within decides."""
    made = cache.Cache(tmp_path)
    wanted = reference.parse("a/b:1")
    assert isinstance(wanted, reference.Reference)
    made.link(wanted, digest="sha256:" + "0" * 64, manifest="sha256:" + "0" * 64)
    assert made.find(wanted) is None
