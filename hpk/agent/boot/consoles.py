"""Receives a process's terminal from crun, which makes it inside the container so that programs know its name.

Cheap to import: a container with ``tty: true`` starts before the event loop.
"""

from __future__ import annotations

import _socket
import os
import sys

_DELIVERY_SECONDS = 2.0
_DESCRIPTOR = 4


class Console:
    """A Unix socket to which crun sends one terminal."""

    def __init__(self, directory: str) -> None:
        """Listen in a directory that only this user may enter.

        Raises:
            OSError: The path is too long for a socket, or the disk is full.
        """
        self.path = os.path.join(directory, "tty-" + os.urandom(8).hex())
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            self._socket.bind(self.path)
            self._socket.listen(1)
        except OSError:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor, which is readable when the terminal has been sent."""
        return int(self._socket.fileno())

    def take(self) -> int:
        """Return our end of the terminal, which crun has sent or is about to send; the caller closes it.

        Raises:
            OSError: It was not sent.
        """
        self._socket.settimeout(_DELIVERY_SECONDS)
        descriptor, _ = self._socket._accept()  # type: ignore[attr-defined] # noqa: SLF001 - `accept` brings enum
        connection = _socket.socket(fileno=descriptor)
        try:
            connection.settimeout(_DELIVERY_SECONDS)
            space = _socket.CMSG_LEN(_DESCRIPTOR)
            _, ancillary, _, _ = connection.recvmsg(4096, space, _socket.MSG_CMSG_CLOEXEC)
        finally:
            connection.close()
        for level, kind, data in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS) and len(data) >= _DESCRIPTOR:
                return int.from_bytes(data[:_DESCRIPTOR], sys.byteorder)
        raise OSError("Cannot open a terminal: crun sent none")

    def close(self) -> None:
        """Remove the socket; a terminal that was taken stays open. Idempotent."""
        self._socket.close()
        try:  # noqa: SIM105 - contextlib takes time
            os.unlink(self.path)
        except FileNotFoundError:
            pass
