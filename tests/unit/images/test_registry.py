"""The client believes no registry, and is patient with those that are busy."""

from __future__ import annotations

import base64
import socket
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.images import authorization, credentials, image, manifest, reference, registry
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

HERE = image.host_architecture()
BLOB = bytes(range(256)) * 20_000


async def test_resolving_costs_one_head(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """The digest comes from the header alone; a digest reference asks nobody."""
    digest = server.push("a/b", tag="1")
    assert await client.resolve(server.access()) == digest
    assert await client.resolve(server.access(f"a/b@{digest}")) == digest
    assert server.requests == ["HEAD /v2/a/b/manifests/1"]


async def test_registries_without_the_digest_header(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """The manifest is fetched and hashed instead."""
    digest = server.push("a/b", tag="1")
    body = server.manifests["a/b", "1"][1]
    server.answer("manifests/1", fake.body(b""), fake.body(body))
    assert await client.resolve(server.access()) == digest


async def test_an_index_leads_to_this_machines_image(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """The manifest of this platform is chosen, and its own digest told."""
    mine = server.push("a/b", tag="mine", layers=(b"layer",))
    other = server.push("a/b", tag="other", architecture="riscv128")
    index = server.push_index("a/b", tag="1", images={"linux/riscv128": other, f"linux/{HERE}": mine})
    digest, found = await client.fetch_manifest(server.access(), digest=index)
    assert (digest, [layer.digest for layer in found.layers]) == (mine, [fake.digest_of(b"layer")])
    config = await client.fetch_config(server.access(), descriptor=found.config)
    assert config.architecture == HERE


async def test_other_platforms_are_refused(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """By an index that lacks this one, and by an image without an index whose config says another."""
    other = server.push("a/b", tag="other", architecture="riscv128")
    index = server.push_index("a/b", tag="1", images={"linux/riscv128": other})
    with pytest.raises(errors.ImageRefused, match=rf"no match for platform linux/{HERE} .*linux/riscv128.*not found"):
        await client.fetch_manifest(server.access(), digest=index)
    _, found = await client.fetch_manifest(server.access(), digest=other)
    with pytest.raises(errors.ImageRefused, match="no match for platform"):
        await client.fetch_config(server.access(), descriptor=found.config)


async def test_busy_registries_are_waited_for(
    server: fake.FakeRegistry, client: registry.Registry, pauses: list[float]
) -> None:
    """As long as they ask, or ever longer."""
    digest = server.push("a/b", tag="1")
    server.answer("manifests", fake.status(429, retry_after="7"), fake.status(503), fake.status(500))
    assert await client.resolve(server.access()) == digest
    assert pauses[0] == 7
    assert 0 < pauses[1] < pauses[2] < 10


async def test_patience_ends(server: fake.FakeRegistry, client: registry.Registry, pauses: list[float]) -> None:
    """A registry that stays busy, or asks for more than a minute, is unavailable; the pod backs off instead."""
    server.answer("manifests", *[fake.status(503)] * registry.ATTEMPTS)
    with pytest.raises(errors.RegistryUnavailable, match=r"unexpected status from HEAD .*503 Service Unavailable"):
        await client.resolve(server.access())
    assert len(pauses) == registry.ATTEMPTS - 1
    server.answer("manifests", fake.status(429, retry_after="3600"))
    with pytest.raises(errors.RegistryUnavailable, match="429 Too Many Requests"):
        await client.resolve(server.access())
    assert len(pauses) == registry.ATTEMPTS - 1


async def test_registries_that_are_down(client: registry.Registry) -> None:
    """Nobody listens, or nobody has the name: unavailable, and told why."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        wanted = reference.parse(f"127.0.0.1:{taken.getsockname()[1]}/a:1")
        assert isinstance(wanted, reference.Reference)
        with pytest.raises(
            errors.RegistryUnavailable, match=r"failed to do request: HEAD .*refused|Connect call failed"
        ):
            await client.resolve(authorization.Access(reference=wanted))


@pytest.mark.parametrize("what", ["manifest", "config", "layer"])
async def test_lying_registries_are_refused(
    server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path, what: str
) -> None:
    """Whatever does not hash to the digest it was asked for by is not used, and the answer says so."""
    digest = server.push("a/b", tag="1", layers=(b"right",))
    _, found = await client.fetch_manifest(server.access(), digest=digest)
    server.answer("/a/b/", fake.body(b"wrong"))
    match what:
        case "manifest":
            asked: Awaitable[object] = client.fetch_manifest(server.access(), digest=digest)
        case "config":
            asked = client.fetch_config(server.access(), descriptor=found.config)
        case _:
            asked = client.download(server.access(), descriptor=found.layers[0], path=tmp_path / "x")
    with pytest.raises(errors.ImageRefused, match=r"wrong digest: sha256:\w+ instead of sha256:\w+"):
        await asked


async def test_a_layer_longer_than_announced_is_refused(
    server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path
) -> None:
    """It cannot fill the disk."""
    server.answer("blobs", fake.body(BLOB))
    with pytest.raises(errors.ImageRefused, match="more than the 5 bytes"):
        await client.download(server.access(), descriptor=fake.descriptor(b"right"), path=tmp_path / "x")


async def test_broken_downloads_go_on_where_they_stopped(
    server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path, pauses: list[float]
) -> None:
    """Nothing that arrived is fetched again, and a line that breaks often is no reason to give up."""
    server.blobs[fake.digest_of(BLOB)] = BLOB
    server.answer("blobs", fake.broken(BLOB, after=3 << 20), *[None] * 2)
    await client.download(server.access(), descriptor=fake.descriptor(BLOB), path=tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == BLOB
    assert (server.count("blobs"), len(pauses)) == (2, 1)


async def test_registries_that_cannot_resume(
    server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path
) -> None:
    """Who answers a range with the whole is taken at its word: start again."""
    server.answer("blobs", fake.broken(BLOB, after=3 << 20), fake.body(BLOB))
    await client.download(server.access(), descriptor=fake.descriptor(BLOB), path=tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == BLOB


async def test_downloads_that_get_nowhere(server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path) -> None:
    """A connection that breaks each time before anything arrived makes the registry unavailable."""
    server.answer("blobs", *[fake.broken(BLOB, after=0)] * registry.ATTEMPTS)
    with pytest.raises(errors.RegistryUnavailable, match="failed to copy layer"):
        await client.download(server.access(), descriptor=fake.descriptor(BLOB), path=tmp_path / "x")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "cannot be read"),
        (b"[]", "cannot be read"),
        (b'{"layers": [], "config": {"digest": "sha256:../../x", "size": 1}}', "not a digest"),
        (b'{"schemaVersion": 1}', "no longer supported"),
    ],
)
def test_odd_manifests_are_refused(body: bytes, words: str) -> None:
    """Pages of a proxy, digests that are paths, formats of the past."""
    with pytest.raises(errors.ImageRefused, match=words):
        manifest.read(body, media_type="application/json")


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("busybox", "https://registry-1.docker.io/v2/library/busybox/x"),
        ("quay.io/a", "https://quay.io/v2/a/x"),
        ("ctl:5000/a", "http://ctl:5000/v2/a/x"),
        ("localhost/a", "http://localhost/v2/a/x"),
        ("127.0.0.2:1/a", "http://127.0.0.2:1/v2/a/x"),
        ("[::1]:5000/a", "http://[::1]:5000/v2/a/x"),
    ],
)
def test_only_the_named_speak_plain_http(name: str, scheme: str) -> None:
    """Registries in the settings and on loopback; all others are spoken to over TLS."""
    wanted = reference.parse(name)
    assert isinstance(wanted, reference.Reference)
    assert registry.Registry(insecure=["ctl:5000"])._url(wanted, "x") == scheme


@pytest.mark.parametrize(
    ("key", "is_covered"),
    [
        ("quay.io", True),
        ("https://quay.io/v2/", True),
        ("quay.io/a", True),
        ("quay.io/a/b", True),
        ("*.io", True),
        ("quay.io/ab", False),
        ("quay.io:5000", False),
        ("*", False),
        ("docker.io", False),
    ],
)
def test_credentials_by_key(key: str, is_covered: bool) -> None:  # noqa: FBT001 - a column of the table
    """Keys name a registry or a path in it, as in the kubelet."""
    wanted = reference.parse("quay.io/a/b:1")
    assert isinstance(wanted, reference.Reference)
    entry = {"auth": base64.b64encode(b"alice:p:w").decode()}
    found = credentials.find({"auths": {key: entry}}, wanted=wanted)
    expected = credentials.Credentials(username="alice", password="p:w")
    assert found == (expected if is_covered else None)
    assert "p:w" not in repr(expected)


def test_the_longest_key_wins() -> None:
    """A path's own account before the registry's; entries that cannot be read do not count."""
    wanted = reference.parse("busybox")
    assert isinstance(wanted, reference.Reference)
    auths = {
        "https://index.docker.io/v1/": {"username": "hub", "password": "1"},
        "docker.io/library/busybox": {"auth": "damaged"},
        "docker.io/library": {"identitytoken": "t"},
    }
    assert credentials.find({"auths": auths}, wanted=wanted) == credentials.Credentials(username="", identity_token="t")
    assert credentials.find({"auths": None}, wanted=wanted) is None
