"""The user's kubeconfig gains and loses one context, and nothing else."""

from __future__ import annotations

import stat
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from hpk import errors, kubeconfig
from tests import virtual

if TYPE_CHECKING:
    from pathlib import Path


def document(server: str = "https://c1:6443") -> bytes:
    """What the control plane hands over."""
    return yaml.safe_dump({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "hpk", "cluster": {"server": server, "certificate-authority-data": "Y2E="}}],
        "users": [{"name": "hpk", "user": {"client-certificate-data": "Yw==", "client-key-data": "aw=="}}],
        "contexts": [{"name": "hpk", "context": {"cluster": "hpk", "user": "hpk", "namespace": "default"}}],
        "current-context": "hpk",
    }).encode()  # fmt: skip


OTHERS = {
    "apiVersion": "v1",
    "kind": "Config",
    "preferences": {"colors": True},
    "clusters": [{"name": "work", "cluster": {"server": "https://work"}}],
    "users": [{"name": "me", "user": {"exec": {"command": "login", "args": ["é", "x"]}}}],
    "contexts": [{"name": "work", "context": {"cluster": "work", "user": "me"}}],
    "current-context": "work",
    "extensions": [{"name": "mine", "extension": {"a": 1}}],
}


def read(path: Path) -> dict[str, Any]:
    """The file's data."""
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_a_new_file(tmp_path: Path) -> None:
    """Without a kubeconfig there is one afterwards, for its owner only, and its context is current."""
    path = tmp_path / ".kube" / "config"
    kubeconfig.merge(document(), into=path)
    assert read(path)["current-context"] == "hpk"
    assert read(path)["users"][0]["user"]["client-key-data"] == "aw=="
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_everything_else_is_kept(tmp_path: Path) -> None:
    """Coming and going, also twice, leaves the user's own data as it was, and the same context current."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(OTHERS, sort_keys=False))
    kubeconfig.merge(document("https://c1:1"), into=path)
    kubeconfig.merge(document("https://c2:2"), into=path)
    config = read(path)
    assert [entry["name"] for entry in config["clusters"]] == ["work", "hpk"]
    assert config["clusters"][1]["cluster"]["server"] == "https://c2:2"
    assert {key: config[key] for key in ("preferences", "extensions")} == {
        key: OTHERS[key] for key in ("preferences", "extensions")
    }
    assert kubeconfig.remove(document(), out_of=path)
    assert read(path) == OTHERS
    assert not kubeconfig.remove(document(), out_of=path)


def test_another_clusters_context_stays(tmp_path: Path) -> None:
    """`hpk down` of one state directory leaves the way to another's control plane."""
    path = tmp_path / "config"
    kubeconfig.merge(document(), into=path)
    before = path.read_text()
    assert not kubeconfig.remove(document().replace(b"Y2E=", b"b3RoZXI="), out_of=path)
    assert path.read_text() == before


@pytest.mark.parametrize("torn", [b"", b"clusters: [", b"words"])
def test_a_torn_document_takes_nothing_out(tmp_path: Path, torn: bytes) -> None:
    """As a power cut may leave it: whose the context is cannot be told."""
    path = tmp_path / "config"
    kubeconfig.merge(document(), into=path)
    assert not kubeconfig.remove(torn, out_of=path)


def test_the_users_own_choice_stays(tmp_path: Path) -> None:
    """Somebody who has turned to another context meanwhile stays there."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(OTHERS))
    kubeconfig.merge(document(), into=path)
    path.write_text(path.read_text().replace("current-context: hpk", "current-context: elsewhere"))
    kubeconfig.remove(document(), out_of=path)
    assert read(path)["current-context"] == "elsewhere"


def test_a_previous_context_that_is_gone(tmp_path: Path) -> None:
    """No context is better than one that does not exist."""
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump({**OTHERS, "contexts": []}))
    kubeconfig.merge(document(), into=path)
    kubeconfig.remove(document(), out_of=path)
    assert read(path)["current-context"] == ""


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """A kubeconfig that is kept elsewhere is changed there."""
    real, link = tmp_path / "real", tmp_path / "config"
    real.write_text(yaml.safe_dump(OTHERS))
    link.symlink_to(real)
    kubeconfig.merge(document(), into=link)
    assert link.is_symlink()
    assert read(real)["current-context"] == "hpk"


@pytest.mark.parametrize(
    "text", ["a: [", "just words", "clusters: {}\n", "- 1\n", "clusters: [null]\n", "contexts: [{context: x}]\n"]
)
def test_what_is_no_kubeconfig_is_left_alone(tmp_path: Path, text: str) -> None:
    """A file that cannot be understood is not overwritten, and no lock stays behind."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(errors.Fatal, match="Cannot change the kubeconfig"):
        kubeconfig.merge(document(), into=path)
    assert path.read_text() == text
    assert list(tmp_path.iterdir()) == [path]


def test_kubectls_lock_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While kubectl holds the lock nothing is changed; when it lets go, the change is made."""
    path, lock = tmp_path / "config", tmp_path / "config.lock"
    lock.touch()
    pauses: list[float] = []

    def let_go(seconds: float) -> None:
        pauses.append(seconds)
        lock.unlink()

    monkeypatch.setattr(time, "sleep", let_go)
    kubeconfig.merge(document(), into=path)
    assert len(pauses) == 1
    assert path.exists()
    assert not lock.exists()


def test_a_lock_that_stays_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that somebody left behind is an error that says what to do."""
    lock = tmp_path / "config.lock"
    lock.touch()
    monkeypatch.setattr(kubeconfig, "time", virtual.Time())
    with pytest.raises(errors.Conflict, match=r"config\.lock .* remove it"):
        kubeconfig.merge(document(), into=tmp_path / "config")
    assert lock.exists()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A directory in the file's place is an error of the user's terms."""
    with pytest.raises(errors.Fatal, match="Cannot change the kubeconfig"):
        kubeconfig.merge(document(), into=tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"), [("/a/b:/c", "/a/b"), (":/c", "/c"), ("", "/home/x/.kube/config"), ("~/k", "/home/x/k")]
)
def test_the_file_is_kubectls(monkeypatch: pytest.MonkeyPatch, value: str, expected: str) -> None:
    """The first entry of KUBECONFIG, or kubectl's default."""
    monkeypatch.setenv("HOME", "/home/x")
    assert str(kubeconfig.path({"KUBECONFIG": value})) == expected


def test_the_context_can_lead_elsewhere(tmp_path: Path) -> None:
    """Our cluster's URL changes, and nothing else; without our context nothing does."""
    path = tmp_path / "config"
    assert not kubeconfig.point("https://127.0.0.1:1", into=path)
    path.write_text(yaml.safe_dump(OTHERS))
    assert not kubeconfig.point("https://127.0.0.1:1", into=path)
    kubeconfig.merge(document(), into=path)
    before = read(path)
    assert kubeconfig.point("https://127.0.0.1:1", into=path)
    assert kubeconfig.current(path) == ("hpk", "https://127.0.0.1:1")
    assert kubeconfig.point("https://c1:6443", into=path)
    assert read(path) == before
