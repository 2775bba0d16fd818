"""Sessions into a pod: what exec, attach and port-forward mean on the link, whatever protocol a client speaks.

The kubelet's API opens them (:class:`Opener`), the pod's agent serves them; both ends see the same events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

STDIN, STDOUT, STDERR = 0, 1, 2
"""Channels of exec and attach. A forwarded port has two: 0 to the port, 1 from the port."""

CHUNK = 512 << 10
"""Bytes of the largest :class:`Data` that :meth:`Session.receive` returns; ``send`` takes any number."""


@dataclass(frozen=True, kw_only=True)
class Exec:
    """A program in a running container, with all that the container's own process has.

    With ``tty`` standard error comes on channel 1, and ``stderr`` is ignored; ``size`` is the terminal's columns and
    lines, if they are known before the program starts: one that asks at once is told, where a resize comes later.
    """

    container: str
    argv: tuple[str, ...]
    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False
    size: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Attach:
    """The container's own process: what it writes from now on, and its standard input if the plan gives it one.

    ``tty`` must be what the container's specification says.
    """

    container: str
    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One TCP connection to localhost in the pod's network namespace."""

    port: int


Request = Exec | Attach | Forward


@dataclass(frozen=True)
class Data:
    """Bytes on a channel: never none, at most ``CHUNK``."""

    channel: int
    data: bytes


@dataclass(frozen=True)
class Closed:
    """No more data on this channel; the others go on."""

    channel: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The last event, after all data.

    Attributes:
        exit_code: Of an exec'd program that ran: 0 to 255, 128 + signal if one killed it. None for others.
        error: Text for the client, when the session could not be had or did not end by itself: no such container,
            command not found, connection refused, the link was lost. With an ``exit_code`` it explains it (126, 127).
        reason: CamelCase word for programs, such as ``ContainerNotFound``, ``ContainerNotRunning``,
            ``CommandNotFound``, ``ConnectionRefused``, ``LinkLost``; empty if there is no error.
    """

    exit_code: int | None = None
    error: str = ""
    reason: str = ""


Event = Data | Closed | Ended


class Session(Protocol):
    """One exec, attach or forwarded connection, as the kubelet sees it."""

    async def receive(self) -> Event:
        """The next event; after :class:`Ended` it must not be called again. A lost link arrives as ``Ended``."""

    async def send(self, channel: int, data: bytes) -> None:
        """Hand on data, waiting for room; dropped once the channel is closed or the session has ended."""

    async def close(self, channel: int) -> None:
        """Say that no more data comes on this channel (end of standard input); idempotent."""

    async def resize(self, *, width: int, height: int) -> None:
        """Tell the terminal its size in characters; nothing happens without one."""

    async def abort(self) -> None:
        """Give the session up and release all it holds: an exec'd program is killed, a container is not. Idempotent."""


class Opener(Protocol):
    """Opens sessions."""

    async def open(self, uid: str, request: Request) -> Session:
        """Begin a session in a pod. That it cannot be had there (no such container …) arrives as ``Ended``.

        Raises:
            errors.HpkError: The pod's agent is not on the line, is too old, did not answer in 10 s, or there are too
                many sessions; the text names the pod and says which.
        """
