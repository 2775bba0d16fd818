"""The cluster's tests ask an installation that is as this checkout has it, however busy the machine."""

from __future__ import annotations

import dataclasses
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests import cluster

if TYPE_CHECKING:
    from pathlib import Path

SLOW = (1, b"Unable to connect to the server: net/http: TLS handshake timeout")


@pytest.mark.parametrize(
    ("answers", "asked", "is_failure"),
    [
        ([(0, b"")], 1, False),
        ([SLOW, SLOW, (0, b"")], 3, False),
        ([(1, b"Error from server (NotFound)"), (0, b"")], 1, True),
        ([SLOW] * 20, cluster.HANDSHAKES, True),
    ],
    ids=["at once", "a slow handshake", "a refusal", "always slow"],
)
def test_a_handshake_that_took_too_long_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[tuple[int, bytes]],
    asked: int,
    is_failure: bool,  # noqa: FBT001
) -> None:
    """Nothing has been asked by then; any other failure is the test's to see."""
    heard: list[bytes] = []

    def run(*command: str, stdin: bytes, **_: Any) -> subprocess.CompletedProcess[bytes]:
        heard.append(stdin)
        code, words = answers.pop(0)
        return subprocess.CompletedProcess(command, code, b"said", words)

    monkeypatch.setattr(cluster, "run", run)
    if is_failure:
        with pytest.raises(cluster.Failed):
            cluster.kubectl("get", "pods", stdin=b"x")
    else:
        assert cluster.kubectl("get", "pods", stdin=b"x") == "said"
    assert heard == [b"x"] * asked


@pytest.mark.parametrize(("is_strict", "name"), [(False, "SETTINGS"), (True, "STRICT_SETTINGS")])
def test_other_settings_are_another_installation(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    is_strict: bool,  # noqa: FBT001
    name: str,
) -> None:
    """`up` makes it anew, on every profile, when its settings change."""
    (tmp_path / "image").write_bytes(b"image")
    monkeypatch.setattr(cluster, "IMAGE", tmp_path / "image")
    monkeypatch.setattr(cluster, "PROFILE", dataclasses.replace(cluster.PROFILE, strict=is_strict))
    before = cluster.fingerprint()
    monkeypatch.setattr(cluster, name, "other = 1")
    assert cluster.fingerprint() != before
