"""A registry's challenge is met once, as whom it is for, and nobody else learns who that is."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from hpk import errors
from hpk.images import credentials
from tests.fakes import registry as fake

if TYPE_CHECKING:
    from pathlib import Path

    from hpk.images import registry

BLOB = bytes(range(256))


async def test_anonymous_tokens_are_fetched_once(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """The challenge is met for the repository, not for each request."""
    server.users = {"": ""}
    digest = server.push("a/b", tag="1")
    assert await client.resolve(server.access()) == digest
    await client.fetch_manifest(server.access(), digest=digest)
    assert server.requests == [
        "HEAD /v2/a/b/manifests/1",
        "GET /token",
        "HEAD /v2/a/b/manifests/1",
        f"GET /v2/a/b/manifests/{digest}",
    ]


async def test_credentials_open_what_is_closed(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """With the right password in, without it the registry's answer, and one's token is never another's."""
    server.users = {"alice": "right"}
    server.push("a/b", tag="1")
    right = credentials.Credentials(username="alice", password="right")
    wrong = credentials.Credentials(username="alice", password="wrong")
    await client.resolve(server.access(login=right))
    for login in (wrong, None):
        with pytest.raises(errors.ImageRefused, match=r"failed to authorize.*incorrect username or password") as caught:
            await client.resolve(server.access(login=login))
        assert "wrong" not in str(caught.value)


async def test_basic_challenges(server: fake.FakeRegistry, client: registry.Registry) -> None:
    """A registry that wants the password itself gets it."""

    async def closed(_: Any) -> Any:
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="x"'})

    server.push("a/b", tag="1")
    server.answer("manifests", closed)
    await client.resolve(server.access(login=credentials.Credentials(username="alice", password="pw")))
    assert server.authorizations == ["", "Basic " + base64.b64encode(b"alice:pw").decode()]


async def test_a_token_does_not_follow_to_another_host(
    server: fake.FakeRegistry, client: registry.Registry, tmp_path: Path
) -> None:
    """Registries redirect to storage of others, who must not see who we are."""
    async with fake.FakeRegistry() as storage:
        storage.blobs[fake.digest_of(BLOB)] = BLOB
        url = f"http://localhost:{storage.host.rpartition(':')[2]}/v2/a/b/blobs/{fake.digest_of(BLOB)}"

        async def redirect(_: Any) -> Any:
            return web.Response(status=307, headers={"Location": url})

        server.users = {"": ""}
        server.answer("blobs", None, redirect)
        await client.download(server.access(), descriptor=fake.descriptor(BLOB), path=tmp_path / "x")
        assert (server.authorizations[-1], storage.authorizations) == ("Bearer secret", [""])
        assert (tmp_path / "x").read_bytes() == BLOB
