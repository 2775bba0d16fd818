"""The client of the API server: who it is, whom it trusts, and what it costs."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from aiohttp import web

from hpk import errors, pki
from hpk.controlplane import identities
from hpk.kube import client
from tests import virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
def authority() -> pki.Authority:
    """Trusted by both ends."""
    return pki.Authority.create("test")


@pytest.fixture
async def server(authority: pki.Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """An HTTPS server that wants a client's certificate, and tells what it heard from whom; its URL.

    The time that a request's `seconds` says passes before its answer.
    """
    certificate = authority.issue("server", addresses=("127.0.0.1",), is_server=True)
    (tmp_path / "ca.pem").write_bytes(authority.certificate_pem)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*certificate.write(tmp_path, "server"))

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        name = next(value for part in subject for key, value in part if key == "commonName")
        virtual.pass_at_once(float(request.query.get("seconds", "0")), monkeypatch)
        await waiting.turns()
        heard = (await request.read()).decode()
        agent = request.headers["User-Agent"].partition("/")[0]  # an object's manager is called so
        return web.json_response({"name": name, "agent": agent, "type": request.content_type, "heard": heard})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


def kubeconfig(tmp_path: Path, authority: pki.Authority, url: str) -> Path:
    """A file as the control plane writes it."""
    certificate = authority.issue("me", is_client=True)
    path = tmp_path / "kubeconfig"
    path.write_bytes(identities.kubeconfig(server=url, ca_pem=authority.certificate_pem, certificate=certificate))
    return path


async def test_a_kubeconfig_says_where_and_who(tmp_path: Path, authority: pki.Authority, server: str) -> None:
    """The embedded certificate is shown, and bodies arrive as JSON, whatever bytes Slurm has put into them."""
    async with await client.Kube.from_kubeconfig(kubeconfig(tmp_path, authority, server)) as kube:
        answer = await kube.patch("/api", {"why": "caf\udce9"})
        assert (await kube.get("/api"))["heard"] == ""
    body = '{"why": "caf\\udce9"}'
    assert answer == {"name": "me", "agent": "hpk", "type": client.PATCH_TYPES["strategic"], "heard": body}


async def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path, server: str) -> None:
    """Only the cluster's own authority counts, not the machine's."""
    path = kubeconfig(tmp_path, pki.Authority.create("other"), server)
    async with await client.Kube.from_kubeconfig(path) as kube:
        with pytest.raises(errors.ApiUnavailable):
            await kube.get("/api")


@pytest.mark.parametrize(
    "change",
    [
        {"current-context": "gone"},
        {"users": [{"name": "hpk", "user": {"client-certificate-data": "abc"}}]},
        {"clusters": None},
    ],
)
async def test_a_broken_kubeconfig_is_named(tmp_path: Path, authority: pki.Authority, change: dict[str, Any]) -> None:
    """The error says which file cannot be used."""
    path = kubeconfig(tmp_path, authority, "https://127.0.0.1:1")
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_bytes()), **change}))
    with pytest.raises(errors.Fatal, match=f"Cannot use the kubeconfig {path}"):
        await client.Kube.from_kubeconfig(path)


async def test_a_missing_kubeconfig_is_named(tmp_path: Path) -> None:
    """And a file of something else as well."""
    for name in ("none", "text"):
        (tmp_path / "text").write_text("no kubeconfig")
        with pytest.raises(errors.Fatal, match=f"Cannot use the kubeconfig {tmp_path / name}"):
            await client.Kube.from_kubeconfig(tmp_path / name)


async def test_waiting_for_a_connection_of_our_own_is_no_fault_of_the_server(
    tmp_path: Path, authority: pki.Authority, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests share few connections: each has the whole time from when it is sent."""
    monkeypatch.setattr(client, "CONNECTIONS", 1)
    monkeypatch.setattr(client, "TIMEOUT_SECONDS", 60.0)
    async with await client.Kube.from_kubeconfig(kubeconfig(tmp_path, authority, server)) as kube:
        answers = await asyncio.gather(*(kube.get("/", query={"seconds": "12"}) for _ in range(7)))
    assert len(answers) == 7
