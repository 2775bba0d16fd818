"""The agent's modules in one file: what comes from it, and what as ever."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from hpk.agent import modules, pack

ROOT = Path(__file__).parents[3]


def started(program: str, library: Path, packed: Path) -> str:
    """What a program prints that begins as the agent does, with these packages and this file."""
    begin = f"""
import sys
sys.path[:0] = [{str(library)!r}, {str(ROOT)!r}]
from hpk.agent import modules
modules.install({str(packed)!r})
"""
    argv = [sys.executable, "-B", "-I", "-S", "-c", begin + program]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Where the file will be."""
    return tmp_path / "file"


@pytest.fixture
def library(tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose modules have changed since they were packed, but for one that was not."""
    package = tmp_path / "packed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("VALUE = 1\ndef fail():\n    raise KeyError(VALUE)\n")
    (package / "other.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "packed", raising=False)  # another test's
    packed.write_bytes(pack.pack(str(tmp_path), ("packed.one",)))
    (package / "one.py").write_text("VALUE = 2\ndef fail():\n    raise KeyError(VALUE)\n")
    return tmp_path


def test_a_packed_module_comes_from_the_file(library: Path, packed: Path) -> None:
    """It knows where its source is, which a traceback shows."""
    program = """
import packed.one, traceback
print(packed.one.VALUE, packed.one.__file__)
try:
    packed.one.fail()
except KeyError as error:
    print(traceback.extract_tb(error.__traceback__)[-1].line)
"""
    said = started(program, library, packed).splitlines()
    assert said == [f"1 {library}/packed/one.py", "raise KeyError(VALUE)"]


def test_a_module_that_is_not_packed_comes_from_its_package_s_directory(library: Path, packed: Path) -> None:
    """Beside one that is."""
    assert (
        started("import packed.one, packed.other as two; print(packed.one.VALUE, two.VALUE)", library, packed) == "1 3"
    )


def test_without_the_file_modules_come_from_directories(library: Path, packed: Path) -> None:
    """As beside a tree that is bound over the image's program, or with another Python."""
    packed.unlink()
    assert started("import packed.one; print(packed.one.VALUE)", library, packed) == "2"


def test_the_agent_s_start_needs_no_other_file_of_python_s(packed: Path) -> None:
    """Every module but those that read the file, and what Python holds itself."""
    packed.write_bytes(pack.pack(str(ROOT), pack.START[:2]))
    program = """
first = set(sys.modules)
import hpk.agent.main, hpk.agent.loop
from importlib.machinery import SourceFileLoader
print([name for name, one in list(sys.modules.items())
    if name not in first and type(one) is type(sys) and isinstance(one.__spec__.loader, SourceFileLoader)])
"""
    assert started(program, ROOT, packed) == "[]"


def test_each_module_that_may_wait_is_there() -> None:
    """One that was renamed would be loaded by every pod again, and nobody would notice."""
    assert [name for name in sorted(modules.LAZY) if importlib.util.find_spec(name) is None] == []


def test_what_most_pods_never_use_is_loaded_when_it_is_used(packed: Path) -> None:
    """Each is a module that the start imports, and still waits to be loaded after it."""
    packed.write_bytes(pack.pack(str(ROOT), pack.START[:2]))
    program = """
import hpk.agent.main, hpk.agent.loop
waiting = {name for name, module in sys.modules.items() if type(module) is modules.Waiting}
print(sorted(modules.LAZY & set(sys.modules) - waiting), len(waiting) > 8, "dataclasses" in sys.modules)
import hpk.agent.life.httpget
print(type(sys.modules["hpk.agent.life.httpget"]) is modules.Waiting)
from hpk.agent.life.httpget import Failed
print(Failed.__name__, type(sys.modules["hpk.agent.life.httpget"]) is modules.Waiting)
"""
    assert started(program, ROOT, packed).splitlines() == ["[] True False", "True", "Failed False"]


COME = """
def has_come(frame):
    while frame and frame.f_code.co_name != "finish": frame = frame.f_back
    return frame is not None
"""
"""Says of a thread's frame whether it has asked for a module to be loaded."""


def test_a_module_that_waits_is_run_once_whoever_comes_first(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads wait for the one that runs it; what it imports may import it; a failure is not remembered."""
    (tmp_path / "waits.py").write_text(f"""
import builtins, sys, time
{COME}
builtins.runs = getattr(builtins, "runs", 0) + 1
if runs == getattr(builtins, "broken", 0): raise OSError("the disk is away")
import waits
while sum(map(has_come, sys._current_frames().values())) < getattr(builtins, "crowd", 0): time.sleep(0.001)
VALUE = runs
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    packed.write_bytes(pack.pack(str(tmp_path), ("waits",)))
    program = """
import builtins, threading
builtins.broken, modules.LAZY = 1, frozenset({"waits"})
import waits
try:
    waits.VALUE
except OSError as error:
    print(error)
found = []
builtins.crowd = 8
threads = [threading.Thread(target=lambda: found.append(waits.VALUE)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(set(found), runs, type(waits) is type(sys), getattr(waits, "other", None))
"""
    assert started(program, tmp_path, packed).splitlines() == ["the disk is away", "{2} 2 True None"]


def test_no_thread_sees_half_of_a_module_that_waits(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one thread's run has defined already may need what it has not."""
    (tmp_path / "waits.py").write_text(f"""
import builtins, sys, threading, time
{COME}
def value(): return VALUE
if begun := getattr(builtins, "begun", None):  # to pack is to import
    begun.set()
    main = threading.main_thread()
    while main.is_alive() and not has_come(sys._current_frames()[main.ident]): time.sleep(0.001)
VALUE = 1
__version__ = "2"
""")
    monkeypatch.syspath_prepend(str(tmp_path))
    packed.write_bytes(pack.pack(str(tmp_path), ("waits",)))
    program = """
import builtins, threading
builtins.begun, modules.LAZY = threading.Event(), frozenset({"waits"})
import waits
print(waits.__name__, hasattr(waits, "__file__"), type(waits) is modules.Waiting)
thread = threading.Thread(target=lambda: waits.value)
thread.start()
builtins.begun.wait()
print(waits.value(), waits.__version__)
thread.join()
"""
    assert started(program, tmp_path, packed).splitlines() == ["waits True True", "1 2"]
