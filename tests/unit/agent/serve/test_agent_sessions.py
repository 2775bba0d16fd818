"""Sessions in the agent: commands, attached clients and forwarded ports, with real pipes, terminals and sockets."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from hpk import jobdir
from hpk.agent.boot import processes, runs
from hpk.agent.life import capturing, descriptors, execs, logs, podcontext, reaping, report
from hpk.agent.serve import sessions as agent_sessions
from hpk.link import agent_end, sessions
from tests import background, virtual, waiting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TIMEOUT = 60.0
CRUN = Path(__file__).parents[3] / "fakes/crun.py"
OUT, ERR = sessions.STDOUT, sessions.STDERR


class Client:
    """In place of a client beyond the link."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[sessions.Data | sessions.Closed | agent_end.Resize | None] = asyncio.Queue()
        self.piece_bytes = sessions.CHUNK
        self.data: dict[int, bytes] = {}
        self.closed: list[int] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.is_held = asyncio.Event()
        """Set once data was sent that it does not read."""
        self.is_asked = asyncio.Event()
        """Set while all that it typed has been taken, and more is waited for."""
        self.news = asyncio.Event()

    async def receive(self) -> sessions.Data | sessions.Closed | agent_end.Resize | None:
        if self.inbox.empty():
            self.is_asked.set()
        return await self.inbox.get()

    async def send(self, channel: int, data: bytes) -> None:
        if not self.reads.is_set():
            self.is_held.set()
        await self.reads.wait()
        self.data[channel] = self.data.get(channel, b"") + data
        self.news.set()

    async def close(self, channel: int) -> None:
        await self.reads.wait()
        self.closed.append(channel)

    def types(self, text: bytes, *, then_closes: bool = False) -> None:
        """Have input."""
        self.is_asked.clear()
        self.inbox.put_nowait(sessions.Data(sessions.STDIN, text))
        if then_closes:
            self.inbox.put_nowait(sessions.Closed(sessions.STDIN))

    async def sees(self, text: bytes, channel: int = OUT) -> None:
        """Wait for output."""
        async with asyncio.timeout(TIMEOUT):
            while text not in self.data.get(channel, b""):
                self.news.clear()
                await self.news.wait()


class Bench:
    """A pod with one container, which is this machine."""

    def __init__(self, directory: Path) -> None:
        plan: Any = {"uid": "u-1", "namespace": "ns", "name": "p", "restart_policy": "Never", "containers": []}
        places = SimpleNamespace(
            pod=jobdir.PodDirectory(str(directory)), private=str(directory), runtime=str(directory / "crun")
        )
        box: Any = SimpleNamespace(plan=plan, places=places, oom_score=500, fill=lambda text: text)
        loop = asyncio.get_running_loop()
        reporter = report.AgentReporter(
            report.first_report(plan, job_id="7", node="n", host_ip="", pod_ip=""), path=str(directory / "report.json")
        )
        reaper = reaping.Reaper(loop)
        loop.add_signal_handler(signal.SIGCHLD, reaper.reap)
        self.writer = logs.Writer(loop)
        self.all = podcontext.PodContext(box, reporter=reporter, reaper=reaper, writer=self.writer)
        container: Any = {"name": "c", "stdin": True, "stdin_once": True, "tty": False}
        self.run = runs.ContainerRun(container, 0, directory=str(directory), root_directory=str(directory))
        self.run.process = {"env": [f"PATH={processes.PATH}", "HERE=in the container"], "cwd": "/", "args": ["init"]}
        self.target: Any = SimpleNamespace(
            plan=container, run=self.run, capture=None, record={"state": "waiting", "reason": "CrashLoopBackOff"}
        )
        the_pod: Any = SimpleNamespace(find=lambda name: self.target if name == "c" else None)
        self.server = agent_sessions.Server(self.all, the_pod)
        self.directory = directory
        self.theirs: dict[str, int] = {}

    def serve(self, request: sessions.Request, client: Any) -> asyncio.Task[sessions.Ended]:
        """A session."""
        return asyncio.create_task(self.server.serve(request, client))

    def contain(self) -> capturing.Capture:
        """Have the container's own process: this test, by its pipes."""
        ours_out, self.theirs["stdout"] = os.pipe()
        ours_err, self.theirs["stderr"] = os.pipe()
        self.theirs["stdin"], self.run.stdin = os.pipe()
        file = logs.LogFile(str(self.directory / "0.log"), on_trouble=print)
        self.target.capture = capturing.Capture({"stdout": ours_out, "stderr": ours_err}, file=file, writer=self.writer)
        return self.target.capture  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Leave nothing behind."""
        for task in list(self.all._background):
            await task
        runs.close_stdin(self.run)
        for descriptor in self.theirs.values():
            os.close(descriptor)
        self.writer.close()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """A bench whose crun is a fake; in a short path, for a socket must have one."""
    directory = Path(tempfile.mkdtemp(prefix="hpk-"))
    program = directory / "fake-crun"
    program.write_text(f"#!{sys.executable} -IS\n" + CRUN.read_text())
    program.chmod(0o755)
    monkeypatch.setattr(runs, "CRUN", str(program))
    made = Bench(directory)
    yield made
    await made.close()
    shutil.rmtree(directory)


def shell(script: str, **streams: Any) -> sessions.Exec:
    """A command of the shell."""
    return sessions.Exec(container="c", argv=("sh", "-c", script), **streams)


async def ended(task: asyncio.Task[sessions.Ended]) -> sessions.Ended:
    """How a session ended, by itself."""
    async with asyncio.timeout(TIMEOUT):
        return await task


def open_descriptors() -> set[str]:
    """Of this process."""
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their names


async def stays_full(pipe: int) -> None:
    """Return when a pipe has been full for so many turns of the loop that whoever reads all would have emptied it."""
    seen = 0
    async with asyncio.timeout(TIMEOUT):
        while seen < 100:
            is_full = not select.select([], [pipe], [], 0)[1]
            seen = seen + 1 if is_full else 0
            await asyncio.sleep(0)


async def gone(process: int) -> None:
    """Wait until a process is no more."""
    await waiting.until(lambda: not Path(f"/proc/{process}").exists())


# -- exec -------------------------------------------------------------------------------------------------------


async def test_a_command_s_streams_are_apart_and_its_exit_code_is_known(bench: Bench) -> None:
    """Standard output and error have channels of their own, which end before the session does."""
    client = Client()
    end = await ended(bench.serve(shell('echo "$HERE"; echo err >&2; exit 42'), client))
    assert client.data == {OUT: b"in the container\n", ERR: b"err\n"}
    assert sorted(client.closed) == [OUT, ERR]
    assert end == sessions.Ended(exit_code=42)


async def test_a_killed_command_ends_with_its_signal(bench: Bench) -> None:
    """128 and the number, as a shell has it."""
    assert (await ended(bench.serve(shell("kill -9 $$"), Client()))).exit_code == 137


async def test_input_reaches_the_command_and_ends(bench: Bench) -> None:
    """A megabyte goes in and comes back, and half-close is what ends the command."""
    client, sent = Client(), os.urandom(1 << 20)
    task = bench.serve(sessions.Exec(container="c", argv=("cat",), stdin=True), client)
    for start in range(0, len(sent), sessions.CHUNK):
        client.types(sent[start : start + sessions.CHUNK])
    client.inbox.put_nowait(sessions.Closed(sessions.STDIN))
    assert (await ended(task)).exit_code == 0
    assert client.data[OUT] == sent


async def test_a_command_without_input_reads_its_end(bench: Bench) -> None:
    """What nobody asked for is /dev/null, in and out."""
    client = Client()
    assert (await ended(bench.serve(shell("cat; echo no", stdout=False), client))).exit_code == 0
    assert not client.data


async def test_input_that_nobody_reads_does_not_break_the_session(bench: Bench) -> None:
    """A command may close its input or end while more is coming."""
    client = Client()
    mark = bench.directory / "typed"
    script = f"exec <&-; echo open; until test -e {mark}; do sleep 0.01; done; echo done"
    task = bench.serve(shell(script, stdin=True), client)
    await client.sees(b"open")
    client.types(b"x" * 100_000)
    client.types(b"y", then_closes=True)
    await client.is_asked.wait()
    mark.touch()
    assert (await ended(task)).exit_code == 0
    assert client.data[OUT] == b"open\ndone\n"


async def test_a_missing_command_is_said_as_runc_says_it(bench: Bench) -> None:
    """With a shell's exit code."""
    client = Client()
    end = await ended(bench.serve(sessions.Exec(container="c", argv=("foo",)), client))
    assert not client.data
    text = 'unable to start container process: exec: "foo": executable file not found in $PATH'
    assert end == sessions.Ended(exit_code=127, error=text, reason="CommandNotFound")


@pytest.mark.parametrize(
    ("said", "code", "words"),
    [
        ("executable file `/no` not found: No such file or directory", 127, 'exec: "/no": no such file or directory'),
        ("the path `/no` exists but it is not executable: Operation not permitted", 126, "permission denied"),
        ("the path `/` is not a regular file: Operation not permitted", 126, "is a directory"),
        ("the container `c` is not running", None, "is not running"),
    ],
)
def test_what_crun_says_becomes_an_exit_code(said: str, code: int | None, words: str) -> None:
    """126 or 127 where the command is to blame; none where there was no command."""
    failure = execs.failure(said, ["/no"])
    assert failure.exit_code == code
    assert words in str(failure)


async def test_a_terminal_has_a_size_and_job_control(bench: Bench) -> None:
    """Programs see a terminal of the client's size, ^C reaches them, and output has one channel."""
    client = Client()
    script = "test -t 0 && test -t 2 && echo $TERM; stty size; while :; do sleep 0.02; done"
    trap = "trap 'echo interrupted; stty size; exit 0' INT; "
    task = bench.serve(shell(trap + script, stdin=True, tty=True), client)
    await client.sees(b"xterm\r\n0 0")
    client.inbox.put_nowait(agent_end.Resize(132, 43))
    client.types(b"\x03")
    await client.sees(b"interrupted\r\n43 132")
    assert (await ended(task)).exit_code == 0
    assert set(client.data) == {OUT}


async def test_a_terminal_has_its_size_from_the_start(bench: Bench) -> None:
    """Where the client told it in time: the first thing that a program asks for is right."""
    request = dataclasses.replace(shell("stty size", tty=True), size=(101, 31))
    client = Client()
    assert (await ended(bench.serve(request, client))).exit_code == 0
    assert client.data[OUT] == b"31 101\r\n"


async def test_a_missing_command_on_a_terminal_is_said_too(bench: Bench) -> None:
    """Nobody waits for a terminal that does not come."""
    end = await ended(bench.serve(sessions.Exec(container="c", argv=("foo",), stdin=True, tty=True), Client()))
    assert (end.exit_code, end.reason) == (127, "CommandNotFound")


@pytest.mark.parametrize("tty", [False, True])
async def test_a_command_is_killed_when_its_client_goes(bench: Bench, tty: bool) -> None:  # noqa: FBT001
    """Whatever it does; nothing of the session is left."""
    client = Client()
    before = open_descriptors()
    task = bench.serve(shell("echo $$; exec sleep 1000", stdin=True, tty=tty), client)
    await client.sees(b"\n")
    await background.end(task)
    await gone(int(client.data[OUT]))
    for one in list(bench.all._background):
        await one
    assert open_descriptors() == before
    assert not list(bench.directory.glob("exec-*"))
    assert not list(bench.directory.glob("tty-*"))


async def test_a_client_that_goes_at_once_leaves_no_command(bench: Bench) -> None:
    """Even before crun has said which process it is."""
    task = bench.serve(shell("exec sleep 1000"), Client())
    await asyncio.sleep(0)
    await background.end(task)
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*bench.all._background)


async def test_a_slow_reader_holds_the_command_back_and_loses_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits: no more is asked of it than the client was sent.  All of its output is there in the end."""
    asked: list[int] = []
    real = descriptors.read

    async def read(descriptor: int, most: int) -> bytes:
        asked.append(descriptor)
        return await real(descriptor, most)

    monkeypatch.setattr(descriptors, "read", read)
    client = Client()
    client.reads.clear()
    mark = bench.directory / "written"
    task = bench.serve(shell(f"head -c 3000000 /dev/zero; echo > {mark}"), client)
    await client.is_held.wait()
    await waiting.turns()
    assert len(asked) == len(set(asked)) == 2  # standard output and error, once each
    assert not mark.exists()
    client.reads.set()
    assert (await ended(task)).exit_code == 0
    assert len(client.data[OUT]) == 3_000_000


async def test_no_container_no_command(bench: Bench) -> None:
    """An unknown one, and one that does not run now, are said by name."""
    end = await ended(bench.serve(sessions.Exec(container="x", argv=("true",)), Client()))
    assert end == sessions.Ended(error='container not found ("x")', reason="ContainerNotFound")
    bench.target.run = None
    end = await ended(bench.serve(shell("true"), Client()))
    assert end.reason == "ContainerNotRunning"
    assert "CrashLoopBackOff" in end.error


async def test_a_probe_s_command_that_takes_too_long_is_killed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller hears of the time-out; the process goes, as it does when the caller itself is cancelled."""
    pipe = bench.directory / "pipe"
    os.mkfifo(pipe)
    command = ["sh", "-c", f"echo $$ > {pipe}; exec sleep 1000"]
    asking = asyncio.create_task(execs.execute(bench.all, bench.target, command, timeout_seconds=3600))
    process = int(await asyncio.to_thread(pipe.read_text))
    virtual.pass_at_once(3600, monkeypatch)
    with pytest.raises(TimeoutError):
        await asking
    await gone(process)
    asking = asyncio.create_task(execs.execute(bench.all, bench.target, command))
    process = int(await asyncio.to_thread(pipe.read_text))
    await background.end(asking)
    await gone(process)


async def test_a_probe_s_command_has_its_exit_code_and_output(bench: Bench) -> None:
    """Both streams, together."""
    assert await execs.execute(bench.all, bench.target, ["sh", "-c", "echo a; echo b >&2; exit 3"]) == (3, "a\nb\n")
    with pytest.raises(execs.NotRunning, match="not found in"):
        await execs.execute(bench.all, bench.target, ["foo"])


# -- attach -----------------------------------------------------------------------------------------------------

ATTACH = sessions.Attach(container="c", stdin=True)


async def test_attach_shows_what_is_written_from_now_on(bench: Bench) -> None:
    """By stream, besides the log, until the run ends."""
    capture = bench.contain()
    os.write(bench.theirs["stdout"], b"before\n")
    log = bench.directory / "0.log"
    await waiting.until(lambda: log.exists() and b"before" in log.read_bytes())
    client = Client()
    task = bench.serve(ATTACH, client)
    await asyncio.sleep(0)
    os.write(bench.theirs["stdout"], b"after\n")
    os.write(bench.theirs["stderr"], b"error\n")
    await client.sees(b"after\n")
    await client.sees(b"error\n", ERR)
    for name in ("stdout", "stderr"):
        os.close(bench.theirs.pop(name))
    await capture.finish(timeout_seconds=60)
    assert await ended(task) == sessions.Ended()
    assert client.data == {OUT: b"after\n", ERR: b"error\n"}
    text = log.read_bytes()
    assert all(word in text for word in (b"before", b"after", b"error"))


async def test_attached_input_reaches_the_container_and_ends_once(bench: Bench) -> None:
    """With stdinOnce the container reads the end of its input when the first client has closed its own."""
    capture = bench.contain()
    client = Client()
    task = bench.serve(ATTACH, client)
    client.types(b"one\n", then_closes=True)
    assert await asyncio.to_thread(os.read, bench.theirs["stdin"], 100) == b"one\n"
    assert await asyncio.to_thread(os.read, bench.theirs["stdin"], 100) == b""
    assert not task.done()
    await finish(bench, capture)
    await ended(task)


async def test_input_stays_open_for_the_next_client(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without stdinOnce clients come, are let go when they have no more to say, and the container runs on."""
    bench.target.plan["stdin_once"] = False
    capture = bench.contain()
    for text in (b"one\n", b"two\n"):
        client = Client()
        task = bench.serve(ATTACH, client)
        client.types(text, then_closes=True)
        assert await asyncio.to_thread(os.read, bench.theirs["stdin"], 100) == text
        await client.is_asked.wait()
        virtual.pass_at_once(agent_sessions.LINGER_SECONDS, monkeypatch)
        assert (await ended(task)).error == ""
    await finish(bench, capture)


async def typed_and_closed(bench: Bench, text: bytes) -> tuple[capturing.Capture, Client, asyncio.Task[sessions.Ended]]:
    """A client has ended its input, which the container has read and which stays open."""
    bench.target.plan["stdin_once"] = False
    capture, client = bench.contain(), Client()
    task = bench.serve(ATTACH, client)
    client.types(text, then_closes=True)
    assert await asyncio.to_thread(os.read, bench.theirs["stdin"], 100) == text
    await client.is_asked.wait()
    return capture, client, task


async def test_what_comes_of_the_last_input_is_shown(bench: Bench) -> None:
    """To a client that has ended its input already; ``kubectl debug -i`` with a pipe is one."""
    capture, client, task = await typed_and_closed(bench, b"hostname\n")
    await waiting.turns()
    os.write(bench.theirs["stdout"], b"p\n")
    await client.sees(b"p\n")
    await finish(bench, capture)
    assert (await ended(task)).error == ""


async def test_attached_input_that_nobody_wants_is_dropped(bench: Bench) -> None:
    """A container without stdin takes none, and the session goes on."""
    bench.target.plan["stdin"] = False
    capture = bench.contain()
    client = Client()
    task = bench.serve(ATTACH, client)
    client.types(b"x", then_closes=True)
    await asyncio.sleep(0)
    os.write(bench.theirs["stdout"], b"still here")
    await client.sees(b"still here")
    await finish(bench, capture)
    await ended(task)


async def test_an_attached_client_that_does_not_read_is_let_go(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds the container back for some seconds, and not for ever; the log has everything."""
    capture = bench.contain()
    client = Client()
    client.reads.clear()
    task = bench.serve(ATTACH, client)
    await asyncio.sleep(0)
    line = b"x" * 999 + b"\n"

    def write() -> None:
        for _ in range(2000):
            os.write(bench.theirs["stdout"], line)

    writing = asyncio.create_task(asyncio.to_thread(write))
    await client.is_held.wait()
    await stays_full(bench.theirs["stdout"])
    virtual.pass_at_once(capturing.PATIENCE_SECONDS, monkeypatch)
    async with asyncio.timeout(TIMEOUT):
        await writing
    client.reads.set()
    end = await ended(task)
    assert end.reason == "SlowReader"
    await finish(bench, capture)
    assert (bench.directory / "0.log").read_bytes().count(b" F x") == 2000


async def test_a_slow_client_that_reads_on_is_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything arrives."""
    monkeypatch.setattr(capturing, "PATIENCE_SECONDS", 3600.0)
    capture = bench.contain()
    client = Client()
    client.reads.clear()
    task = bench.serve(ATTACH, client)
    await asyncio.sleep(0)
    writing = asyncio.create_task(asyncio.to_thread(write_all, bench.theirs["stdout"], b"y" * 2_000_000))
    await client.is_held.wait()
    await stays_full(bench.theirs["stdout"])
    assert not writing.done()
    client.reads.set()
    await writing
    await finish(bench, capture)
    assert await ended(task) == sessions.Ended()
    assert len(client.data[OUT]) == 2_000_000


async def test_attach_to_a_terminal_sets_its_size(bench: Bench) -> None:
    """The container's programs see the client's size, and what it types."""
    bench.target.plan["tty"] = True
    ours, theirs = os.openpty()
    bench.run.stdin = os.dup(ours)
    file = logs.LogFile(str(bench.directory / "0.log"), on_trouble=print)
    capture = bench.target.capture = capturing.Capture({"stdout": ours}, file=file, writer=bench.writer)
    client = Client()
    task = bench.serve(sessions.Attach(container="c", stdin=True, tty=True), client)
    client.inbox.put_nowait(agent_end.Resize(100, 30))
    client.types(b"hello\n")
    assert await asyncio.to_thread(os.read, theirs, 100) == b"hello\n"
    assert tuple(os.get_terminal_size(theirs)) == (100, 30)
    os.write(theirs, b"out")
    await client.sees(b"out")
    os.close(theirs)
    await capture.finish(timeout_seconds=60)
    await ended(task)


def write_all(descriptor: int, data: bytes) -> None:
    """All of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


async def finish(bench: Bench, capture: capturing.Capture) -> None:
    """End the container's run."""
    for name in ("stdout", "stderr"):
        os.close(bench.theirs.pop(name))
    await capture.finish(timeout_seconds=60)


# -- port-forward -----------------------------------------------------------------------------------------------


async def test_a_forwarded_connection_carries_both_ways_and_half_closes(bench: Bench) -> None:
    """The server sees the end of the request and still answers; large data is whole."""
    got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.set_result(await reader.read())
        writer.write(b"z" * 3_000_000)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Client()
    client.types(b"q" * 200_000)
    client.types(b"!", then_closes=True)
    async with server:
        end = await ended(bench.serve(sessions.Forward(port=server.sockets[0].getsockname()[1]), client))
    assert end == sessions.Ended()
    assert await got == b"q" * 200_000 + b"!"
    assert client.data[1] == b"z" * 3_000_000
    assert client.closed == [1]


async def test_a_port_where_nobody_listens(bench: Bench) -> None:
    """It is said as containerd says it, for both address families."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    end = await ended(bench.serve(sessions.Forward(port=port), Client()))
    assert end.reason == "ConnectionRefused"
    assert f"failed to connect to localhost:{port}" in end.error
    assert f"dial tcp4 127.0.0.1:{port}: connect: connection refused" in end.error


async def test_a_server_on_ipv6_only_is_found(bench: Bench) -> None:
    """Localhost has two addresses."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"six")
        writer.close()

    server = await asyncio.start_server(answer, "::1", 0)
    client = Client()
    client.inbox.put_nowait(sessions.Closed(0))
    async with server:
        await ended(bench.serve(sessions.Forward(port=server.sockets[0].getsockname()[1]), client))
    assert client.data[1] == b"six"


async def test_what_was_written_in_time_is_shown_however_late_it_is_read(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine so busy that the agent sleeps for all the while that a client is kept: what is there comes first."""
    capture, client, task = await typed_and_closed(bench, b"one\n")
    os.write(bench.theirs["stdout"], b"42\n")
    virtual.pass_at_once(agent_sessions.LINGER_SECONDS, monkeypatch)
    await ended(task)
    assert client.data == {OUT: b"42\n"}
    await finish(bench, capture)


async def test_a_connection_that_breaks_is_an_error(bench: Bench) -> None:
    """A reset is not an orderly end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = Client()
        task = bench.serve(sessions.Forward(port=server.getsockname()[1]), client)
        connection, _ = await asyncio.to_thread(server.accept)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
        end = await ended(task)
    assert end.reason == "ConnectionReset"
    assert "connection reset by peer" in end.error
