"""Sessions into a pod: exec, attach and port-forward on the link, whatever protocol a client speaks.

The kubelet's API opens them (:class:`SessionOpener`), the pod's agent serves them; both ends see the same events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

STDIN, STDOUT, STDERR = 0, 1, 2
"""Channels of exec and attach. A forwarded port has two: 0 to the port, 1 from the port."""

CHUNK = 512 << 10
"""Size of the largest :class:`Data` that :meth:`Session.receive` returns; ``send`` takes any size."""


@dataclass(frozen=True, kw_only=True)
class _Streams:
    container: str
    stdin: bool = False
    stdout: bool = True
    stderr: bool = True
    tty: bool = False


@dataclass(frozen=True, kw_only=True)
class Exec(_Streams):
    """A program in a running container, with the same view as the container's own process.

    With ``tty`` standard error comes on channel 1, and ``stderr`` is ignored. ``size`` is the terminal's columns and
    lines, if known before the program starts: a resize would come too late for a program that asks at once.
    """

    argv: tuple[str, ...]
    size: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Attach(_Streams):
    """The container's own process: its output from now on, and its standard input if the plan gives it one.

    ``tty`` must equal the container specification's.
    """


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One TCP connection to localhost in the pod's network namespace."""

    port: int


Request = Exec | Attach | Forward


@dataclass(frozen=True)
class Data:
    """Bytes on a channel: 1 to ``CHUNK``."""

    channel: int
    data: bytes


@dataclass(frozen=True)
class Closed:
    """The end of this channel; the others continue."""

    channel: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The last event, after all data.

    Attributes:
        exit_code: Exit code of an exec'd program that ran: 0 to 255, 128 + signal if one killed it. Else None.
        error: Text for the client if the session could not be opened or did not end by itself: no such container,
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
        """Return the next event, ``Ended`` for a lost link; must not be called again after :class:`Ended`."""

    async def send(self, channel: int, data: bytes) -> None:
        """Send data, waiting for room; drop it if the channel is closed or the session has ended."""

    async def close(self, channel: int) -> None:
        """Close this channel for further data (end of standard input); idempotent."""

    async def resize(self, *, width: int, height: int) -> None:
        """Set the terminal's size in characters; without a terminal do nothing."""

    async def abort(self) -> None:
        """End the session and release all it holds: kill an exec'd program, but not a container. Idempotent."""


class SessionOpener(Protocol):
    """Opens sessions."""

    async def open(self, uid: str, request: Request) -> Session:
        """Open a session in a pod. A failure inside the pod (no such container …) arrives as ``Ended``.

        Raises:
            errors.HpkError: The pod's agent is not connected, is too old, did not answer in 10 s, or has too many
                sessions; the text names the pod and says which.
        """
