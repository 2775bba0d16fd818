"""What users do in the pod: exec, attach and port-forward, each served by one task that a session may cancel.

Nothing is buffered here but one piece of data for each direction: who does not read holds up who writes, from a
program in the container to the client and back.  What a session does can harm neither the agent nor the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from hpk import aiotasks
from hpk.agent.boot import consoles, runs
from hpk.agent.life import descriptors, execs
from hpk.agent.serve import forward
from hpk.link import sessions

if TYPE_CHECKING:
    from collections.abc import Callable

    from hpk.agent.life import container, pod, podcontext
    from hpk.link import agent_end

LINGER_SECONDS = 2.0
"""How long a client that ended its input is still shown what the container writes, where that input stays open."""
_CHANNELS = {"stdout": sessions.STDOUT, "stderr": sessions.STDERR}


class Server:
    """Serves the sessions of this pod."""

    def __init__(self, context: podcontext.PodContext, the_pod: pod.PodRunner) -> None:
        self._context = context
        self._pod = the_pod

    async def serve(self, request: sessions.Request, client: agent_end.AgentSession) -> sessions.Ended:
        """One session to its end; cancelled when the client has gone.

        Raises:
            Exception: ``agent_end.Gone``, or a fault of ours: either way only this session ends.
        """
        if isinstance(request, sessions.Forward):
            return await forward.serve(request.port, client)
        target = self._pod.find(request.container)
        if target is None:
            return sessions.Ended(error=f'container not found ("{request.container}")', reason="ContainerNotFound")
        if target.run is None:
            return _not_running(target)
        if isinstance(request, sessions.Attach):
            return await _attach(target, target.run, request, client)
        return await _exec(self._context, target.run, request, client)


def _not_running(target: container.ContainerRunner) -> sessions.Ended:
    name, record = target.plan["name"], target.record
    state = f"{record['state']}: {record['reason']}" if record["reason"] else record["state"]
    return sessions.Ended(error=f'container not found ("{name}"): it is {state}', reason="ContainerNotRunning")


# -- exec -------------------------------------------------------------------------------------------------------


async def _exec(
    context: podcontext.PodContext, run: runs.ContainerRun, request: sessions.Exec, client: agent_end.AgentSession
) -> sessions.Ended:
    """Run a command; as a CRI runtime does, it is killed when its client goes, but not what it left behind."""
    if not request.argv:
        return sessions.Ended(error="exec: no command", reason="InvalidCommand")
    with contextlib.ExitStack() as stack:
        try:
            if request.tty:
                command, ends = await _with_terminal(context, run, request, stack)
            else:
                command, ends = _with_pipes(context, run, request, stack)
        except execs.NotRunning as error:
            return _not_run(error)
        except OSError as error:
            return sessions.Ended(error=f"Cannot start a process: {error}", reason="StartError")
        return await _accompany(command, ends, client)


class _Ends:
    """Our ends of a command's streams."""

    def __init__(self) -> None:
        self.outputs: dict[int, int] = {}
        """Channel → descriptor."""
        self.input: int | None = None
        self.terminal: int | None = None


def _with_pipes(
    context: podcontext.PodContext, run: runs.ContainerRun, request: sessions.Exec, stack: contextlib.ExitStack
) -> tuple[execs.Command, _Ends]:
    """Start a command on pipes; what the client does not want goes to /dev/null."""
    ends = _Ends()
    with contextlib.ExitStack() as theirs:
        null = os.open("/dev/null", os.O_RDWR)
        theirs.callback(os.close, null)
        files = dict.fromkeys((sessions.STDIN, sessions.STDOUT, sessions.STDERR), null)
        if request.stdin:
            files[sessions.STDIN], ends.input = os.pipe()
            theirs.callback(os.close, files[sessions.STDIN])
            stack.callback(_close_input, ends)
            os.set_blocking(ends.input, False)
        for channel, is_wanted in ((sessions.STDOUT, request.stdout), (sessions.STDERR, request.stderr)):
            if is_wanted:
                ends.outputs[channel], files[channel] = os.pipe()
                theirs.callback(os.close, files[channel])
                stack.callback(os.close, ends.outputs[channel])
                os.set_blocking(ends.outputs[channel], False)
        command = execs.Command(context, run, list(request.argv), files=files)
    stack.callback(lambda: context.in_background(command.kill()))
    return command, ends


async def _with_terminal(
    context: podcontext.PodContext, run: runs.ContainerRun, request: sessions.Exec, stack: contextlib.ExitStack
) -> tuple[execs.Command, _Ends]:
    """Start a command on a terminal of its own, made by crun in the container."""
    console = consoles.Console(context.box.places.private)
    try:
        null = os.open("/dev/null", os.O_RDWR)
        try:
            files = dict.fromkeys((sessions.STDIN, sessions.STDOUT, sessions.STDERR), null)
            argv = list(request.argv)
            command = execs.Command(context, run, argv, files=files, console=console, size=request.size)
        finally:
            os.close(null)
        stack.callback(lambda: context.in_background(command.kill()))
        terminal = await _delivered(command, console)
    finally:
        console.close()
    stack.callback(os.close, terminal)
    os.set_blocking(terminal, False)
    ends = _Ends()
    ends.terminal = terminal
    ends.input = terminal if request.stdin else None
    if request.stdout:
        ends.outputs = {sessions.STDOUT: terminal}
    return command, ends


async def _delivered(command: execs.Command, console: consoles.Console) -> int:
    """The terminal, when crun has sent it."""
    waiting = asyncio.create_task(descriptors.readable(console.fileno()))
    try:
        await asyncio.wait({waiting, command.ended}, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await command.wait()  # raises, most likely
            raise execs.NotRunning("crun ended without making a terminal")
        return console.take()
    finally:
        await aiotasks.cancel(waiting)


async def _accompany(command: execs.Command, ends: _Ends, client: agent_end.AgentSession) -> sessions.Ended:
    """Carry data until the command has ended and, as with containerd, nobody else holds its output open."""
    copying = [asyncio.create_task(_copy(command, end, channel, client)) for channel, end in ends.outputs.items()]
    feeding = asyncio.create_task(_feed(client, ends, lambda: _close_input(ends)))
    try:
        code = await command.wait()
        await asyncio.gather(*copying)
    except execs.NotRunning as error:
        return _not_run(error)
    finally:
        await aiotasks.cancel(feeding, *copying)
    return sessions.Ended(exit_code=code)


def _not_run(error: execs.NotRunning) -> sessions.Ended:
    reasons = {execs.NOT_FOUND: "CommandNotFound", execs.NOT_EXECUTABLE: "CommandNotExecutable"}
    reason = reasons.get(error.exit_code or 0, "ContainerNotRunning")
    return sessions.Ended(exit_code=error.exit_code, error=str(error), reason=reason)


def _close_input(ends: _Ends) -> None:
    """The command reads the end of its input; a terminal has none, as with containerd."""
    if ends.input is not None and ends.terminal is None:
        os.close(ends.input)
    ends.input = None


async def _copy(command: execs.Command, descriptor: int, channel: int, client: agent_end.AgentSession) -> None:
    """From the command to the client, to the end."""
    is_wide, has_begun = False, False
    while data := await descriptors.read(descriptor, client.piece_bytes):
        if not has_begun and not (has_begun := await command.has_begun()):
            continue
        if len(data) >= descriptors.PIPE_BYTES and not is_wide:
            descriptors.widen(descriptor)
            is_wide = True
        await client.send(channel, data)
    await client.close(channel)


async def _feed(client: agent_end.AgentSession, ends: _Ends, on_closed: Callable[[], None]) -> None:
    """From the client to the command: input, its end, and the terminal's size."""
    while (event := await client.receive()) is not None:
        if isinstance(event, sessions.Data):
            if ends.input is None:
                continue  # nobody reads it: dropped, as by a CRI runtime
            if len(event.data) > descriptors.PIPE_BYTES:
                descriptors.widen(ends.input)
            try:
                await descriptors.write(ends.input, event.data)
            except OSError:  # the command has closed its input
                on_closed()
        elif isinstance(event, sessions.Closed):
            on_closed()
        elif ends.terminal is not None:
            descriptors.resize(ends.terminal, width=event.width, height=event.height)


# -- attach -----------------------------------------------------------------------------------------------------


async def _attach(
    target: container.ContainerRunner, run: runs.ContainerRun, request: sessions.Attach, client: agent_end.AgentSession
) -> sessions.Ended:
    """Show what the container writes, and hand on input, until its run or the client ends.

    A client that ends its input ends the container's where that is for one client only (``stdinOnce``, no terminal);
    else it has done what it came for and is let go, as by containerd (internal/cri/io/container_io.go), so that
    ``kubectl run -i --leave-stdin-open`` returns; but not at once, as there: who pipes a few lines into
    ``kubectl debug -i`` wants to see what comes of them.
    """
    if target.capture is None:
        return _not_running(target)
    capture, plan = target.capture, target.plan
    ends = _ends_of(run, has_terminal=plan["tty"], has_input=plan["stdin"] and request.stdin)

    def close_input() -> None:
        if ends.input is not None:
            if plan.get("stdin_once") and not plan["tty"]:
                runs.close_stdin(run)
            else:
                loop = asyncio.get_running_loop()
                # Not before what the container has written by then is read: its reader may be due in the same turn.
                loop.call_later(LINGER_SECONDS, loop.call_soon, tap.end)
        _close_input(ends)

    wanted = {name for name, is_wanted in (("stdout", request.stdout), ("stderr", request.stderr)) if is_wanted}
    tap = capture.tap()
    feeding = asyncio.create_task(_feed(client, ends, close_input))
    try:
        while (item := await tap.take()) is not None:
            if item[0] in wanted:
                await client.send(_CHANNELS[item[0]], item[1])
    finally:
        capture.untap(tap)
        await aiotasks.cancel(feeding)
        close_input()
        if ends.terminal is not None:
            os.close(ends.terminal)
    if tap.was_slow:
        return sessions.Ended(error="detached: the client did not read, and held the container up", reason="SlowReader")
    return sessions.Ended()


def _ends_of(run: runs.ContainerRun, *, has_terminal: bool, has_input: bool) -> _Ends:
    """What a client that attaches gets of a run's streams: descriptors of its own, for others may be attached, too."""
    ends = _Ends()
    if run.stdin is not None and (has_terminal or has_input):
        own = os.dup(run.stdin)
        os.set_blocking(own, False)
        ends.terminal = own if has_terminal else None
        ends.input = own if has_input else None
    return ends
