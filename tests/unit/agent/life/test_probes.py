"""Probes and hooks against real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import grpc.aio
import pytest

from hpk import pki
from hpk.agent.life import hooks, httpget, probes
from tests import background, virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

TIMEOUT = 60.0


def test_a_probe_s_numbers_have_the_api_s_defaults() -> None:
    """Delay 0, timeout 1, period 10, success 1, failure 3."""
    assert probes.timing({}) == probes.Timing(
        initial_delay_seconds=0, timeout_seconds=1, period_seconds=10, success_threshold=1, failure_threshold=3
    )


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        ([False, False, False], [None, None, False]),
        ([False, False, True, False], [None, None, None, None]),
        ([True, True, False, False, False], [None, True, None, None, False]),
    ],
)
def test_only_results_in_a_row_count(results: list[bool], verdicts: list[bool | None]) -> None:
    """A success between failures begins the count anew."""
    verdict = probes.Verdict(probes.timing({"successThreshold": 2}))
    assert [verdict.add(result) for result in results] == verdicts


ENDLESS = b"HTTP/1.1 200 OK\r\n" + (b"x: " + b"y" * 60_000 + b"\r\n") * 200
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


class Server:
    """An HTTP server that answers by path and remembers requests."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.is_asked = asyncio.Event()
        self.port = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:  # only a connection, no request
            writer.close()
            return
        self.requests.append(head)
        self.is_asked.set()
        path = head.split(" ")[1]
        answers = {
            "/ok?code=204": b"HTTP/1.1 204 No Content\r\n\r\n",
            "/bad": b"HTTP/1.1 503 Nope\r\n\r\n",
            "/away": b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere.invalid/\r\n\r\n",
            "/near": b"HTTP/1.1 302 Found\r\nlocation: /bad\r\n\r\n",
            "/round": b"HTTP/1.1 302 Found\r\nLocation: /round\r\n\r\n",
            "/junk": b"SSH-2.0-OpenSSH\r\n",
            "/nowhere": b"HTTP/1.1 302 Found\r\nLocation: http://[::1/\r\n\r\n",
            "/port": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999/\r\n\r\n",
            "/file": b"HTTP/1.1 302 Found\r\nLocation: ftp://127.0.0.1/\r\n\r\n",
            "/long": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\nY: z\r\n\r\n",
            "/endless": ENDLESS,
            "/nothing": b"",
            "/half": b"HTTP/1.1 200 OK\r\nX: ",
            "/a%20b": b"HTTP/1.1 200 OK\r\n\r\n",
            "/hints": HINTS * 2 + b"HTTP/1.1 200 OK\r\n\r\n",
            "/switch": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "/hints-only": HINTS * 500_000,
        }
        if path == "/slow":
            await reader.read()
        with contextlib.suppress(ConnectionError):
            writer.write(answers.get(path, b"HTTP/1.1 404 Not Found\r\n\r\n"))
            await writer.drain()
        writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server on loopback."""
    made = Server()
    listening = await asyncio.start_server(made.answer, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    listening.close()


async def check(probe: dict[str, Any], *, ports: dict[str, int] | None = None, seconds: float = TIMEOUT) -> str | None:
    """Ask once."""
    box = SimpleNamespace(pod_ip="127.0.0.1")
    context: Any = SimpleNamespace(box=box, pod_name="p_ns(u)")
    target: Any = SimpleNamespace(plan={"name": "c", "ports": ports or {}})
    return await probes.check(context, target, probe, timeout_seconds=seconds)


async def test_http_200_to_399_is_well(server: Server) -> None:
    """With its query string, the kubelet's agent name and the probe's own headers."""
    headers = [{"name": "X-Custom", "value": "1"}, {"name": "Host", "value": "example.org"}]
    probe = {"httpGet": {"path": "/ok?code=204", "port": "web", "httpHeaders": headers}}
    assert await check(probe, ports={"web": server.port}) is None
    (request,) = server.requests
    assert "user-agent: kube-probe/" in request
    assert "x-custom: 1" in request
    assert "host: example.org" in request


async def test_headers_may_be_repeated_and_replaced(server: Server) -> None:
    """As the API has it: each is sent, and a probe's own stands for ours."""
    named = [("X", "1"), ("x", "2"), ("Accept", "text/plain")]
    headers = [{"name": name, "value": value} for name, value in named]
    await check({"httpGet": {"port": server.port, "httpHeaders": headers}})
    sent = server.requests[0].splitlines()
    assert [line for line in sent if line.startswith(("x:", "accept:"))] == ["x: 1", "x: 2", "accept: text/plain"]


@pytest.mark.parametrize("path", ["/bad", "/near"])
async def test_other_statuses_fail_in_the_kubelet_s_words(server: Server, path: str) -> None:
    """Also behind a redirect to the same host."""
    probe = {"httpGet": {"path": path, "port": server.port}}
    assert await check(probe) == "HTTP probe failed with statuscode: 503"


async def test_another_protocol_is_an_answer(server: Server) -> None:
    """Nothing comes after it."""
    assert "statuscode: 101" in str(await check({"httpGet": {"path": "/switch", "port": server.port}}))


async def test_redirects_elsewhere_are_not_followed(server: Server) -> None:
    """A redirect to another host counts as well; one that never ends does not."""
    assert await check({"httpGet": {"path": "/away", "port": server.port}}) is None
    assert "stopped after 10 redirects" in str(await check({"httpGet": {"path": "/round", "port": server.port}}))


async def test_what_is_no_http_fails(server: Server) -> None:
    """With the address in the message."""
    assert f":{server.port}/junk" in str(await check({"httpGet": {"path": "/junk", "port": server.port}}))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nowhere", "failed to parse Location header 'http://[::1/'"),
        ("/port", "failed to parse Location header"),
        ("/file", 'unsupported protocol scheme "ftp"'),
        ("/endless", "server response headers exceeded 10485760 bytes"),
        ("/hints-only", "server response headers exceeded 10485760 bytes"),
        ("/half", ": unexpected EOF"),
        ("/nothing", ": EOF"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_a_failure(server: Server, path: str, words: str) -> None:
    """Whatever a container answers, the probe counts and goes on."""
    text = await check({"httpGet": {"path": path, "port": server.port}})
    assert str(text).startswith(f'Get "http://127.0.0.1:{server.port}{path}": ')
    assert words in str(text)


@pytest.mark.parametrize("path", ["/long", "/a b\r\n", "/hints"])
async def test_what_go_s_client_can_read_is_well(server: Server, path: str) -> None:
    """A header line beyond 64 KiB; a path with a space, which is escaped, and line ends, which are not sent.

    The answer is what comes after early hints.
    """
    assert await check({"httpGet": {"path": path, "port": server.port}}) is None


@pytest.mark.parametrize("action", ["httpGet", "tcpSocket"])
@pytest.mark.parametrize("host", ["a" * 64 + ".example.org", "nul\0", ".."])
async def test_a_name_that_no_host_can_have_is_a_failure(host: str, action: str) -> None:
    """A label has 63 bytes at most."""
    assert "no such host" in str(await check({action: {"host": host, "port": 80}}))


@pytest.mark.parametrize("text", ["http://[::1", "http://h:port", "//[", "http://\udcff:1"])
def test_what_is_no_url_leads_nowhere(text: str) -> None:
    """It is never anything but a ValueError, or another host."""
    with contextlib.suppress(ValueError):
        assert httpget.redirected("http://127.0.0.1:80/", text) is None


async def test_a_tls_server_need_not_say_farewell(tmp_path: Path) -> None:
    """Once it has answered, the probe is over; Go's client waits for nothing either."""
    certificate = pki.Authority.create("test").issue("server", addresses=("127.0.0.1",), is_server=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate.write(tmp_path, "server"))
    is_over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        cast("asyncio.Transport", writer.transport).pause_reading()  # asyncio would answer for it
        await is_over.wait()
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as listening:
        port = listening.sockets[0].getsockname()[1]
        try:
            assert await check({"httpGet": {"port": port, "scheme": "HTTPS"}}) is None
        finally:
            is_over.set()


async def test_a_silent_server_times_out(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is Go's."""
    checking = asyncio.create_task(check({"httpGet": {"path": "/slow", "port": server.port}}, seconds=3600))
    await server.is_asked.wait()
    virtual.pass_at_once(3600, monkeypatch)
    text = await checking
    assert "context deadline exceeded" in str(text)


async def test_tcp_needs_a_listener(server: Server) -> None:
    """A connection is enough; a refused one is named as Go does."""
    assert await check({"tcpSocket": {"port": server.port}}) is None
    free = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    port = free.sockets[0].getsockname()[1]
    free.close()
    assert await check({"tcpSocket": {"port": port}}) == f"dial tcp 127.0.0.1:{port}: connect: connection refused"


async def test_each_address_of_a_name_is_tried(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Localhost is ::1 and 127.0.0.1, and a server may listen on one of them; where all refuse, the first counts."""
    closed = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    free = closed.sockets[0].getsockname()[1]
    closed.close()

    def look_up(_host: str, port: int, **_options: object) -> list[tuple[Any, ...]]:
        return [(None, None, None, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    assert await check({"tcpSocket": {"host": "both", "port": server.port}}) is None
    refused = f"dial tcp both:{free}: connect: connection refused"
    assert await check({"tcpSocket": {"host": "both", "port": free}}) == refused


async def test_an_unknown_port_cannot_be_asked() -> None:
    """It counts neither as success nor as failure."""
    with pytest.raises(LookupError, match="web"):
        await check({"tcpSocket": {"port": "web"}})


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (b"\x08\x01", None),
        (b"\x12\x01x\x08\x01", None),
        (b"\x08\x02", "NOT_SERVING"),
        (b"\x08\xff\x01", "255"),
        (b"", "UNKNOWN"),
        (b"\x08", "health rpc probe failed"),
        (b"junk", "health rpc probe failed"),
    ],
)
@pytest.mark.parametrize(
    ("service", "request_bytes"), [("", b""), ("db", b"\x0a\x02db"), ("d" * 300, b"\x0a\xac\x02" + b"d" * 300)]
)
async def test_grpc_health_must_be_serving(
    answer: bytes, failure: str | None, service: str, request_bytes: bytes
) -> None:
    """The service's name is asked for, however long, and only SERVING is well."""
    asked: list[bytes] = []

    async def health(request: bytes, _context: object) -> bytes:
        asked.append(request)
        return answer

    listening = grpc.aio.server()
    handlers = {"Check": grpc.unary_unary_rpc_method_handler(health)}
    listening.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("grpc.health.v1.Health", handlers),))
    port = listening.add_insecure_port("127.0.0.1:0")
    await listening.start()
    text = await check({"grpc": {"port": port, "service": service}})
    await listening.stop(None)
    assert asked == [request_bytes]
    assert text is None if failure is None else failure in str(text)


async def run_hook(hook: dict[str, Any], *, ports: dict[str, int] | None = None) -> str:
    """Run a hook."""
    context: Any = SimpleNamespace(box=SimpleNamespace(pod_ip="127.0.0.1"), pod_name="p_ns(u)")
    target: Any = SimpleNamespace(plan={"name": "c", "ports": ports or {}}, run=None)
    return await hooks.run(context, target, hook)


async def test_an_http_hook_asks_whatever_the_answer(server: Server) -> None:
    """As in the kubelet, only a connection that fails is a failure."""
    assert await run_hook({"httpGet": {"path": "/bad", "port": "web"}}, ports={"web": server.port}) == ""
    assert "kube-lifecycle/" in server.requests[0]


async def test_a_hook_that_cannot_run_says_why() -> None:
    """No container, no port."""
    assert "not running" in await run_hook({"exec": {"command": ["true"]}})
    assert "web" in await run_hook({"httpGet": {"port": "web"}})


async def test_a_sleep_hook_sleeps() -> None:
    """And succeeds."""
    assert await run_hook({"sleep": {"seconds": 0}}) == ""


def test_ports_are_numbers_or_names() -> None:
    """A number in a string is a number unless a port is named so."""
    assert httpget.resolve_port(80, {}) == 80
    assert httpget.resolve_port("web", {"web": 8080}) == 8080
    assert httpget.resolve_port("80", {}) == 80


@pytest.mark.virtual_time
async def test_a_probe_that_fails_in_an_unforeseen_way_counts_as_failed_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither liveness nor readiness ever stops silently."""
    answers: list[Any] = [None, RuntimeError("unforeseen"), RuntimeError("unforeseen"), None]

    async def check(*_arguments: object, **_options: object) -> None:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer

    monkeypatch.setattr(probes, "check", check)
    events: list[str] = []
    reporter = SimpleNamespace(
        event=lambda _kind, _reason, message, container: events.append(f"{container}: {message}")
    )
    context: Any = SimpleNamespace(reporter=reporter, is_stopping=asyncio.Event())
    ready: list[bool] = []
    is_ready_again = asyncio.Event()

    def set_ready(is_ready: bool) -> None:  # noqa: FBT001 - a setter
        ready.append(is_ready)
        if len(ready) == 3:
            is_ready_again.set()

    target: Any = SimpleNamespace(
        plan={"name": "c", "kind": "app", "readiness_probe": {"failureThreshold": 2}},
        is_running=True,
        set_started=lambda: None,
        set_ready=set_ready,
    )
    watching = asyncio.create_task(probes.watch(context, target))
    await is_ready_again.wait()
    await background.end(watching)
    assert ready == [True, False, True]
    assert "RuntimeError: unforeseen" in events[0]


async def test_name_servers_that_do_not_answer_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many lookups that hang take no thread from the agent's other work, such as writing the report."""
    release = threading.Event()

    def hang(*_arguments: object, **_options: object) -> None:
        release.wait(60)

    monkeypatch.setattr("socket.getaddrinfo", hang)
    probes_of_names = [
        asyncio.create_task(check({"tcpSocket": {"host": "slow.example", "port": 1}}, seconds=3600)) for _ in range(50)
    ]
    await waiting.turns()
    virtual.pass_at_once(3600, monkeypatch)
    try:
        assert all("i/o timeout" in str(text) for text in await asyncio.gather(*probes_of_names))
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "done"), timeout=60) == "done"
    finally:
        release.set()
