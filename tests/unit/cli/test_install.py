"""One image becomes a whole installation, and nothing that the user edited is lost."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from hpk import config, errors
from hpk.cli import data_files, install

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home, and an image that this program seems to run from."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "hpk.sif").write_bytes(b"image")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("USER_PATH", raising=False)
    monkeypatch.setenv("APPTAINER_CONTAINER", str(tmp_path / "hpk.sif"))
    return home


def run(home: Path, *, is_forced: bool = False) -> None:
    """Install."""
    settings = config.Settings(state=home / ".hpk")
    assert install.run(settings, bin_directory=home / ".local/bin", is_forced=is_forced) == 0


def test_everything_is_put_in_place(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Launcher and script can be run, the image is at its place, and the user reads what to do next."""
    run(home)
    launcher, script, image = home / ".local/bin/hpk", home / "hpk.sbatch", home / ".hpk/hpk.sif"
    assert launcher.read_bytes() == data_files.file("hpk").read_bytes()
    assert launcher.stat().st_mode & stat.S_IXUSR
    assert script.read_bytes() == data_files.file("hpk.sbatch").read_bytes()
    assert image.read_bytes() == b"image"
    assert "export PATH=" in capsys.readouterr().out


@pytest.mark.parametrize("end", ["", "/"])
def test_a_path_that_is_set_is_not_asked_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: str
) -> None:
    """It is the host's that counts; in a container Apptainer calls that USER_PATH."""
    monkeypatch.setenv("USER_PATH", f"/usr/bin:{home}/.local/bin{end}")
    run(home)
    assert "export PATH=" not in capsys.readouterr().out


def test_again_changes_nothing(home: Path) -> None:
    """A second run touches no file."""
    run(home)
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*") if path.is_file() and path.suffix != ".json"}
    run(home)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (home / "hpk.sbatch.new").exists()


def test_an_edited_script_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The user's own edits are kept, the new version is beside them; --force takes the new one."""
    run(home)
    (home / "hpk.sbatch").write_text("mine")
    run(home)
    assert (home / "hpk.sbatch").read_text() == "mine"
    assert (home / "hpk.sbatch.new").read_bytes() == data_files.file("hpk.sbatch").read_bytes()
    assert "has your edits and is kept" in capsys.readouterr().out
    run(home, is_forced=True)
    assert (home / "hpk.sbatch").read_bytes() == data_files.file("hpk.sbatch").read_bytes()


def test_an_old_script_that_nobody_edited_is_renewed(home: Path) -> None:
    """An update reaches those who changed nothing."""
    (home / "hpk.sbatch").write_text("of an older version")
    (home / ".hpk").mkdir()
    install._remember(str(home / ".hpk" / install.INSTALLED), b"of an older version")
    run(home)
    assert (home / "hpk.sbatch").read_bytes() == data_files.file("hpk.sbatch").read_bytes()


def test_an_image_that_is_replaced_is_not_written_into(home: Path, tmp_path: Path) -> None:
    """A control plane that runs from the old image keeps its file."""
    run(home)
    image = home / ".hpk/hpk.sif"
    with image.open("rb") as running:
        (tmp_path / "new.sif").write_bytes(b"newer")
        (tmp_path / "new.sif").replace(tmp_path / "hpk.sif")
        run(home)
        assert running.read() == b"image"
    assert image.read_bytes() == b"newer"


def test_an_image_out_of_sight_is_an_error_with_a_remedy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that does not see its own image says how to show it."""
    monkeypatch.setenv("APPTAINER_CONTAINER", "/scratch/hpk.sif")
    with pytest.raises(errors.Fatal, match=r"--bind /scratch /scratch/hpk\.sif install"):
        run(home)
