"""The probe tells what a host offers, and what it does not."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING

import pytest

from hpk.host import probe

if TYPE_CHECKING:
    from pathlib import Path

ROUTES = """Iface	Destination	Gateway	Flags	RefCnt	Use	Metric	Mask	MTU	Window	IRTT
eth0	00000000	FE004D0A	0003	0	0	0	00000000	0	0	0
eth0	00004D0A	00000000	0001	0	0	0	00FFFFFF	0	0	0
cni0	0000F40A	00000000	0001	0	0	0	0000FFFF	0	0	0
"""


@pytest.mark.skipif(sys.byteorder != "little", reason="the kernel prints these in the host's order")
def test_routes_are_networks(tmp_path: Path) -> None:
    """All but the default one."""
    (tmp_path / "route").write_text(ROUTES)
    assert probe.routes(str(tmp_path / "route")) == [["eth0", "10.77.0.0/24"], ["cni0", "10.244.0.0/16"]]


def test_directories_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be made is said; nothing stays."""
    monkeypatch.setattr(probe, "SYNCS", 3)
    assert probe.shared(str(tmp_path))["flock"] is True
    assert "No such file" in probe.shared(str(tmp_path / "nowhere"))["error"]
    assert probe.scratch(str(tmp_path / "new"))["free_bytes"] > 0
    (tmp_path / "file").touch()
    assert probe.scratch(str(tmp_path / "file"))["error"]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "new"]


def test_what_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the system's words; not where a proxy may lead there."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server:
        there = f"127.0.0.1:{server.getsockname()[1]}"
        assert probe.unreachable([there, "127.0.0.1:1", "nonsense"]).keys() == {"127.0.0.1:1", "nonsense"}
    assert probe.unreachable(["127.0.0.1:1"]) == {"127.0.0.1:1": "Connection refused"}
    monkeypatch.setenv("https_proxy", "http://proxy")
    assert probe.unreachable(["127.0.0.1:1"]) == {}


def test_a_sandbox_is_started(tmp_path: Path) -> None:
    """Its answer, or the last line of its complaint, or why there was no start."""
    there = probe.sandbox(["sh", "-c", 'test -d "$0" && echo "{\\"address\\": 1}"', "$HPK_SCRATCH"], str(tmp_path))
    assert there["address"] == 1
    assert there["seconds"] >= 0
    failed = probe.sandbox(["sh", "-c", "echo one >&2; echo two >&2; exit 3"], str(tmp_path))
    assert (failed["error"], failed["said"]) == ("two", "one\ntwo")
    assert "No such file" in probe.sandbox(["/nowhere"], str(tmp_path))["error"]
    assert list(tmp_path.iterdir()) == []


def test_the_answer_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All facts, those of the gateway among them."""
    monkeypatch.setattr(probe, "SYNCS", 3)
    monkeypatch.setenv("HPK_PROBE_SCRATCH", str(tmp_path))
    request = {"apptainer": "nosuch", "sandbox": ["false"], "shared": str(tmp_path), "registries": []}
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert probe.main([str(tmp_path / "request.json"), str(tmp_path / "answer.json")]) == 0
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert set(answer) == {"site", "limits", "routes", "unreachable", "shared", "scratch", "sandbox", "now"}
    assert answer["site"]["apptainer"] is None
