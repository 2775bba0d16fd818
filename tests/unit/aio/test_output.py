"""The program's own log."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from hpk.aio import output, process

if TYPE_CHECKING:
    import pytest


def test_lines_go_to_every_place(tmp_path: Path) -> None:
    """Whole lines, those too that came in pieces or without an end."""
    places = [output.LogSink(process.Log(tmp_path / name)) for name in ("node", "home")]
    made = output.Output(places)
    print("one", "two", file=made)
    made.write("th")
    made.write("ree\nfour \udcff")
    made.finish()
    for name in ("node", "home"):
        assert (tmp_path / name).read_text() == "one two\nthree\nfour \\udcff\n"


def test_a_full_home_ends_nothing_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the home refuses is on the node at once, and on the home when there is room again."""
    real, is_full = os.write, True

    def write(descriptor: int, data: bytes) -> int:
        if is_full and Path(f"/proc/self/fd/{descriptor}").readlink().name == "home":
            raise OSError(122, "Disk quota exceeded")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    node, home = output.LogSink(process.Log(tmp_path / "node")), output.LogSink(process.Log(tmp_path / "home"))
    assert node.put([b"one\n"])
    assert not home.put([b"one\n"])
    assert (tmp_path / "home").read_bytes() == b""
    is_full = False
    assert home.put([b"two\n"])
    assert (tmp_path / "home").read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "node").read_bytes() == b"one\n"


def test_a_job_s_output_on_a_full_home_ends_nothing_and_loses_nothing() -> None:
    """The warning that the home is full goes there as well."""
    (read, write), full = os.pipe(), os.open("/dev/full", os.O_WRONLY)
    place = output.LogSink(None, descriptor=full)
    assert not place.put([b"the home is full\n"])
    os.dup2(write, full)
    assert place.put([b"more\n"])
    for descriptor in (write, full):
        os.close(descriptor)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"the home is full\nmore\n"


def test_a_job_s_output_is_bounded() -> None:
    """It cannot be rotated: the last line says where the rest is."""
    read, write = os.pipe()
    place = output.LogSink(None, descriptor=write, most_bytes=8)
    assert place.put([b"12345\n", b"6789\n", b"no more\n"])
    os.close(write)
    with os.fdopen(read, "rb") as file:
        assert file.read() == b"12345\n6789\n" + output.FULL


def test_a_home_that_hangs_holds_nobody(tmp_path: Path) -> None:
    """Writing takes the text and returns; neither does the end wait for long."""
    hangs = threading.Event()

    class Hanging(output.LogSink):
        def put(self, lines: object) -> bool:  # noqa: ARG002
            return hangs.wait(60)

    made = output.Output([Hanging(None)])
    for number in range(3 * output.MOST_LINES):
        print(number, file=made)
    made.finish(0.01)
    assert len(made._lines) == output.MOST_LINES
    hangs.set()


def test_streams_of_the_program_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A print, a traceback, Python's own flush at the end: none of them can fail."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    made = output.take_over(node=tmp_path / "node", home=tmp_path / "gone" / "home")
    assert sys.stderr is sys.stdout is made
    print("well", file=sys.stderr, flush=True)  # noqa: T201
    made.finish()
    assert (tmp_path / "node").read_text() == "well\n"
    assert (tmp_path / "gone" / "home").read_text() == "well\n"
