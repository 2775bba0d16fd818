"""Ports that are free, held and remembered."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import pytest

from hpk import errors
from hpk.aio import ports

if TYPE_CHECKING:
    from pathlib import Path

LOCAL = "127.0.0.1"


def listening(port: int = 0) -> contextlib.closing[socket.socket]:
    """A server as Go and asyncio make it."""
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOCAL, port))
    server.listen()
    return contextlib.closing(server)


def test_a_child_listens_on_a_held_port_and_again() -> None:
    """Holding is no hindrance to the server that the port is for, nor to the same one restarted."""
    with contextlib.closing(ports.hold(LOCAL)) as held:
        for _ in range(2):
            with listening(held.port), contextlib.closing(socket.create_connection((LOCAL, held.port))):
                pass


def test_a_preferred_port_that_is_taken_gives_way() -> None:
    """A port that somebody listens on is not chosen, however much it is preferred."""
    with listening() as server:
        taken = server.getsockname()[1]
        with contextlib.closing(ports.hold(LOCAL, preferred=[taken])) as held:
            assert held.port != taken
            assert ports.LOWEST <= held.port <= ports.HIGHEST


def test_two_holders_never_share() -> None:
    """Two control planes on one host that prefer the same port get different ones."""
    with contextlib.closing(ports.hold(LOCAL)) as first:
        with contextlib.closing(ports.hold(LOCAL, preferred=[first.port])) as second:
            assert second.port != first.port
        first.close()
        with contextlib.closing(ports.hold(LOCAL, preferred=[first.port])) as third:
            assert third.port == first.port


def test_a_foreign_address_is_refused_with_a_remedy() -> None:
    """An address of another host cannot be listened on; the text says what to set."""
    with pytest.raises(errors.Fatal, match="HPK_ADDRESS"):
        ports.hold("192.0.2.77")


def test_the_book_prefers_what_it_recorded(tmp_path: Path) -> None:
    """The same port again after a restart, so that a kubeconfig stays valid."""
    path = tmp_path / "ports.json"
    with contextlib.closing(ports.Book(path)) as book:
        port = book.hold("api", host=LOCAL).port
        assert book.hold("api", host=LOCAL).port == port
        assert book.hold("other", host=LOCAL).port != port
    with contextlib.closing(ports.Book(path)) as book:
        assert book.hold("api", host=LOCAL, preferred=[1]).port == port
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"api": "6443"}', '{"api": 99999999}'])
def test_a_damaged_book_is_no_obstacle(tmp_path: Path, content: str) -> None:
    """A record is a wish: what cannot be read is chosen afresh."""
    path = tmp_path / "ports.json"
    path.write_text(content)
    with contextlib.closing(ports.Book(path)) as book:
        assert book.hold("api", host=LOCAL).port > 0
