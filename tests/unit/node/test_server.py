"""The kubelet's API over real TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web

from hpk import errors, jobdir
from hpk.node import logs, server
from tests import virtual, waiting
from tests.fakes import pods as fakes
from tests.fakes.kubelet import World, issue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LINES = b"".join(b"2026-01-01T00:00:0%d.000000000Z stdout F line %d\n" % (n, n) for n in range(5))


def review_of(name: str) -> dict[str, Any]:
    """An AdmissionReview of a pod."""
    request = {"uid": "1", "kind": {"kind": "Pod"}, "namespace": "a", "object": {"metadata": {"name": name}}}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A server that listens, with one running pod whose log has five lines."""
    made = World(tmp_path)
    made.pods.put(fakes.pod(state=fakes.RUNNING))
    made.log().write_bytes(LINES)
    async with made.server:
        yield made
        await made.close()


async def answer(session: aiohttp.ClientSession, path: str, method: str = "GET", **query: str) -> tuple[int, str]:
    """Status and text."""
    async with session.request(method, path, params=query) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    "path",
    [
        "/healthz",
        "/pods",
        "/containerLogs/a/p/c",
        "/metrics",
        "/nosuch",
        "/",
        "/exec/a/p/c",
        "/attach/a/p/u1/c",
        "/portForward/a/p",
        "/run/a/p/c",
        "/configz",
        "/runningpods/",
    ],
)
async def test_every_path_asks_who_you_are_and_whether_you_may(world: World, path: str) -> None:
    """Nobody gets 401 and a stranger 403, also where there is nothing."""
    assert await answer(world.client(None), path) == (401, "Unauthorized")
    status, text = await answer(world.client(issue("stranger", issuer=world.ca)), path)
    assert status == 403
    assert text.startswith("Forbidden (user=stranger, verb=get, resource=nodes, subresource(s)=[")


async def test_a_certificate_of_another_authority_is_not_even_heard(world: World) -> None:
    """A CN that anybody can write into a certificate of their own proves nothing."""
    forged = issue("apiserver", "system:masters", issuer=issue("ca"))
    with pytest.raises(aiohttp.ClientError):
        await answer(world.client(forged), "/healthz")
    assert world.kube.calls == []


def test_a_broken_certificate_is_fatal_by_name() -> None:
    """The program cannot go on, and says with what."""
    with pytest.raises(errors.Fatal, match="kubelet's API"):
        server.tls(certificate_pem=b"x", key_pem=b"y", client_ca_pem=b"z")


async def test_tokens(world: World) -> None:
    """A good bearer token is a user; a bad one is nobody."""
    assert await answer(world.client(None, Authorization="Bearer good"), "/healthz") == (200, "ok")
    assert await answer(world.client(None, Authorization="Bearer bad"), "/healthz") == (401, "Unauthorized")


async def test_only_http_1_1_is_spoken(world: World) -> None:
    """Upgrades need HTTP/1.1, so nothing newer is negotiated."""
    context = world.trust()
    context.set_alpn_protocols(["h2", "http/1.1"])
    _, writer = await asyncio.open_connection("127.0.0.1", world.server.port, ssl=context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    writer.close()
    await writer.wait_closed()


async def test_plain_answers(world: World) -> None:
    """Pods, running pods, configuration, metrics; and 404 for what is not there."""
    world.pods.put(fakes.pod(state=fakes.ENDED, name="q", uid="u2", phase="Succeeded"))
    client = world.apiserver()
    async with client.get("/pods") as response:
        listed = await response.json()
        assert response.content_type == "application/json"
    assert (listed["kind"], [item["metadata"]["name"] for item in listed["items"]]) == ("PodList", ["p", "q"])
    async with client.get("/runningpods/") as response:
        assert [item["metadata"]["name"] for item in (await response.json())["items"]] == ["p"]
    assert await answer(client, "/configz") == (200, '{"kubeletconfig":{"port":10250}}')
    status, text = await answer(client, "/metrics")
    assert status == 200
    assert 'hpk_pods{phase="Running"} 1.0' in text
    assert "process_resident_memory_bytes" in text
    assert await answer(client, "/nosuch") == (404, "404: Page Not Found")


@pytest.mark.parametrize("method", ["POST", "PUT", "HEAD"])
async def test_logs_are_read_only(world: World, method: str) -> None:
    """Any other method is 405 and told which is allowed."""
    async with world.apiserver().request(method, "/containerLogs/a/p/c") as response:
        assert response.status == 405
        assert response.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    ("path", "query", "status", "text"),
    [
        ("a/p/c", {}, 200, "line 0\nline 1\nline 2\nline 3\nline 4\n"),
        ("a/p/c", {"tailLines": "2"}, 200, "line 3\nline 4\n"),
        ("a/p/c", {"tailLines": "0"}, 200, ""),
        ("a/p/c", {"limitBytes": "9"}, 200, "line 0\nli"),
        ("a/p/c", {"timestamps": "true", "tailLines": "1"}, 200, "2026-01-01T00:00:04.000000000Z line 4\n"),
        ("a/p/c", {"sinceTime": "2026-01-01T00:00:03Z"}, 200, "line 3\nline 4\n"),
        ("a/p/c", {"sinceTime": "2026-01-01T00:00:03Z", "tailLines": "4", "limitBytes": "3"}, 200, "lin"),
        ("a/p/c", {"sinceSeconds": "1"}, 200, ""),
        ("a/p/c", {"stream": "Stderr"}, 200, ""),
        ("a/p/c", {"stream": "Stdout", "limitBytes": "6"}, 200, "line 0"),
        ("a/p/c", {"tailLines": "x"}, 400, None),
        ("a/p/c", {"limitBytes": "0"}, 422, None),
        ("a/p/c", {"previous": "true"}, 400, 'previous terminated container "c" in pod "p" not found'),
        ("a/nosuch/c", {}, 404, 'pod "nosuch" does not exist'),
        ("a/p/nosuch", {}, 404, 'container "nosuch" not found in pod "p"'),
        ("a/p/i", {}, 400, 'container "i" in pod "p" is not available'),
    ],
)
async def test_container_logs(world: World, path: str, query: dict[str, str], status: int, text: str | None) -> None:
    """Every parameter does what it says, and every refusal is the kubelet's."""
    got = await answer(world.apiserver(), f"/containerLogs/{path}", **query)
    assert got[0] == status
    assert text is None or got[1] == text


async def test_seconds_ago_are_counted_by_the_clock_that_wrote_the_log(world: World) -> None:
    """A node whose clock is off by minutes, or as here by months, shows its last seconds all the same."""
    last = datetime(2026, 1, 1, 0, 0, 4, tzinfo=UTC).timestamp()
    report = world.state.pod("u1").report
    world.server._clock = lambda: virtual.EPOCH + 0.5  # half a second after the last line
    jobdir.write_json(report, {"clock_ahead_seconds": last - virtual.EPOCH})
    client = world.apiserver()
    shown = "line 2\nline 3\nline 4\n"
    assert await answer(client, "/containerLogs/a/p/c", sinceSeconds="3") == (200, shown)
    since = {"sinceTime": "2026-01-01T00:00:02Z"}
    assert await answer(client, "/containerLogs/a/p/c", **since) == (200, shown)
    for odd in ("", "[]", '{"clock_ahead_seconds": "x"}'):
        jobdir.write_bytes(report, odd.encode())
        assert await answer(client, "/containerLogs/a/p/c", sinceSeconds="3") == (200, "")


async def test_previous_run(world: World) -> None:
    """Previous shows the run before; a container waiting for its restart shows its last run either way."""
    world.log(count=1).write_bytes(b"2026-01-01T00:01:00.000000000Z stderr F again\n")
    client = world.apiserver()
    world.pods.put(fakes.pod(state=fakes.RUNNING, restartCount=1, lastState=fakes.ENDED))
    assert await answer(client, "/containerLogs/a/p/c") == (200, "again\n")
    assert (await answer(client, "/containerLogs/a/p/c", previous="true"))[1].startswith("line 0\n")
    world.pods.put(fakes.pod(state={"waiting": {"reason": "CrashLoopBackOff"}}, restartCount=1, lastState=fakes.ENDED))
    assert await answer(client, "/containerLogs/a/p/c") == (200, "again\n")
    assert await answer(client, "/containerLogs/a/p/c", previous="true") == (200, "again\n")


async def test_never_ran(world: World) -> None:
    """A pod that was cancelled in the queue has no log, and says so."""
    world.pods.put(fakes.pod(state={"terminated": {"exitCode": 137}}, uid="u9", phase="Failed"))
    assert await answer(world.apiserver(), "/containerLogs/a/p/c") == (400, 'container "c" in pod "p" is terminated')


async def test_follow_sends_headers_at_once_then_bytes_then_the_end(world: World) -> None:
    """Kubectl logs -f of a silent container has its answer at once, each line when it comes, and the end."""
    world.log().unlink()
    async with world.apiserver().get("/containerLogs/a/p/c", params={"follow": "true"}) as response:
        assert response.status == 200
        world.log().write_bytes(LINES[: len(LINES) // 5])
        assert await response.content.readline() == b"line 0\n"
        world.log().write_bytes(LINES)
        world.pods.put(fakes.pod(state=fakes.ENDED))
        assert (await response.content.read()).splitlines()[-1] == b"line 4"


async def test_a_client_that_goes_away_frees_its_request(world: World) -> None:
    """No task is left behind by kubectl logs -f and Ctrl-C."""
    before = asyncio.all_tasks()
    session = world.apiserver()
    response = await session.get("/containerLogs/a/p/c", params={"follow": "true"})
    await world.pods.waiting.wait()
    serving = asyncio.all_tasks() - before
    assert serving
    response.close()
    await asyncio.wait(serving)


async def test_a_slow_client_costs_bounded_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read stops the reading of the file, and still gets all of it later."""
    world.log().write_bytes((b"2026-01-01T00:00:00.000000000Z stdout F " + b"x" * 4000 + b"\n") * 8192)
    read = 0
    writes: list[asyncio.Future[None]] = []
    original_read, original_write = logs._read, web.StreamResponse.write

    def counting(path: str, offset: int, count: int) -> bytes:
        nonlocal read
        block = original_read(path, offset, count)
        read += len(block)
        return block

    async def noticing(self: web.StreamResponse, data: bytes) -> None:
        writes.append(asyncio.ensure_future(original_write(self, data)))
        await writes[-1]

    monkeypatch.setattr(logs, "_read", counting)
    monkeypatch.setattr(web.StreamResponse, "write", noticing)
    async with world.apiserver().get("/containerLogs/a/p/c") as response, asyncio.timeout(waiting.LIMIT_SECONDS):
        while True:  # until one write outlasts a whole other request
            count = len(writes)
            assert await answer(world.apiserver(), "/pods")
            if count and count == len(writes) and not writes[-1].done():
                break
        assert read < 16 << 20  # of 32 MiB: what the kernel's socket buffers took
        assert len(await response.content.read()) == 4001 * 8192


@pytest.mark.parametrize("said", [b"", b"GET /pods HT", b"GET /pods HTTP/1.1\r\nHost: x\r\nX: "])
async def test_who_asks_nothing_is_hung_up_on(tmp_path: Path, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reaches the port may connect: a request that never comes, or never ends, holds no connection for long."""
    taken, take = asyncio.Event(), web.RequestHandler.connection_made

    def taking(self: web.RequestHandler, transport: asyncio.BaseTransport) -> None:
        take(self, transport)
        taken.set()

    monkeypatch.setattr(web.RequestHandler, "connection_made", taking)
    world = World(tmp_path)
    async with world.server:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port, ssl=world.trust())
        writer.write(said)
        await taken.wait()
        await waiting.turns()
        virtual.pass_at_once(server.IDLE_SECONDS, monkeypatch)
        async with asyncio.timeout(waiting.LIMIT_SECONDS):
            assert await reader.read() == b""
        writer.close()


async def test_a_long_command_fits(world: World) -> None:
    """All of an exec's arguments are in the request's first line: what the API server takes is taken here, too."""
    async with world.apiserver().get("/pods", params={"command": "a" * 500_000}) as response:
        assert response.status == 200


@pytest.mark.parametrize("header", [b"X-%d: y\r\n", b"X: " + b"y" * 1000 + b"%d"])
async def test_endless_headers_are_refused(world: World, header: bytes) -> None:
    """Before anybody has proved who they are nothing large is taken in, as one header or as many."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.server.port, ssl=world.trust())
    writer.write(b"GET /pods HTTP/1.1\r\n")
    answer = asyncio.create_task(reader.readline())
    sent = 0
    while sent < 1 << 20 and not answer.done():
        writer.write(header % sent)
        sent += len(header)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        await asyncio.sleep(0)
    assert b" 400 " in await answer
    writer.transport.abort()


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("good", {"uid": "1", "allowed": True, "warnings": ["a Pod"]}),
        ("ugly", {"uid": "1", "allowed": True}),
        (
            "bad",
            {
                "uid": "1",
                "allowed": False,
                "status": {"message": "no such thing", "reason": "Forbidden", "code": 403},
            },
        ),
    ],
)
async def test_reviews_are_answered_as_the_api_server_wants(world: World, name: str, response: Any) -> None:
    """A refusal has its text for kubectl; an error of ours refuses nothing."""
    async with world.apiserver().post("/admission", json=review_of(name)) as answer:
        made = await answer.json()
    assert (made["apiVersion"], made["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    assert made["response"] == response


async def test_a_change_is_reviewed_with_what_it_replaces(world: World) -> None:
    """Of a pod that gets an ephemeral container both are needed."""
    asked = review_of("good")
    asked["request"] |= {"oldObject": asked["request"]["object"], "subResource": "resize"}
    async with world.apiserver().post("/admission", json=asked) as answer:
        made = await answer.json()
    assert made["response"]["status"]["message"] == "no such change of resize"


async def test_only_the_api_server_may_ask_for_a_review(world: World) -> None:
    """Without its certificate, or with somebody else's, there is no answer."""
    async with world.client(None).post("/admission", json=review_of("good")) as answer:
        assert answer.status == 401
    async with world.client(issue("mallory", issuer=world.ca)).post("/admission", json=review_of("good")) as answer:
        assert answer.status == 403


@pytest.mark.parametrize("body", [b"", b"[]", b'{"request": {}}', b'{"request": {"object": 1}}'])
async def test_what_is_no_review_is_a_bad_request(world: World, body: bytes) -> None:
    """Nothing that is sent ends the server."""
    async with world.apiserver().post("/admission", data=body) as answer:
        assert answer.status == 400


async def test_stopping_cuts_those_who_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kubelet's end does not wait for logs that never end."""
    monkeypatch.setattr(server, "GOODBYE_SECONDS", 3600.0)
    world = World(tmp_path)
    world.pods.put(fakes.pod(state=fakes.RUNNING))
    async with asyncio.timeout(waiting.LIMIT_SECONDS), world.server:
        response = await world.apiserver().get("/containerLogs/a/p/c", params={"follow": "true"})
        await world.pods.waiting.wait()
    with pytest.raises(aiohttp.ClientError):
        await response.content.read()
    response.close()
    await world.close()
