"""``apptainer run hpk.sif install``: install everything from the one downloaded file."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors, jobdir
from hpk.cli import data_files

if TYPE_CHECKING:
    from hpk import config

IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Variables in which the runtime names this program's image."""
INSTALLED = "installed.json"
"""A file in the state directory with the installed sbatch script's digest, by which an edited script is recognised."""


def run(settings: config.Settings, *, bin_directory: Path, is_forced: bool) -> int:
    """Install or update; a repeated call changes nothing.

    Raises:
        errors.Fatal: A file cannot be written.
    """
    try:
        jobdir.make_directory(str(settings.state))
        lines = [
            _image(settings),
            _launcher(bin_directory / "hpk"),
            _script(settings, Path("~/hpk.sbatch").expanduser(), is_forced=is_forced),
        ]
    except OSError as error:
        raise errors.Fatal(f"Cannot install: {error.filename}: {error.strerror}") from error
    for line in lines:
        print(line)
    path = os.environ.get("USER_PATH") or os.environ.get("PATH", "")  # Apptainer renames the host's PATH
    if str(bin_directory) not in map(os.path.normpath, path.split(os.pathsep)):
        print(f"Add {bin_directory} to your PATH:  export PATH={bin_directory}:$PATH")
    print("Check the settings in ~/hpk.sbatch, then:  hpk up   (or: sbatch ~/hpk.sbatch)")
    return 0


def _image(settings: config.Settings) -> str:
    """Put the image into the state directory, as a hard link if possible, else as a copy."""
    target = settings.state / "hpk.sif"
    named = next((os.environ[name] for name in IMAGE_VARIABLES if os.environ.get(name)), None)
    if named is None:
        return f"Image     not installed, because this command does not run in one; put hpk.sif at {target}"
    source = Path(named)
    if not source.is_file():
        raise errors.Fatal(
            f"Cannot install: the container does not see its own image {source}; "
            f"run: apptainer run --bind {source.parent} {source} install"
        )
    if target.exists() and target.samefile(source):
        return f"Image     {target}"
    # A rename: the old file must not change while a control plane runs from it.
    temporary = target.with_name(f"{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        temporary.chmod(0o700)
    temporary.replace(target)
    return f"Image     {target}"


def _launcher(target: Path) -> str:
    """Write the launcher; replace a symbolic link instead of following it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and _content(target) == data_files.file("hpk").read_bytes():
        return f"Launcher  {target}"
    jobdir.write_bytes(str(target), data_files.file("hpk").read_bytes(), 0o755)
    target.chmod(0o755)
    return f"Launcher  {target} (new)"


def _script(settings: config.Settings, target: Path, *, is_forced: bool) -> str:
    """Write the sbatch script, unless that would overwrite the user's edits."""
    text = data_files.file("hpk.sbatch").read_bytes()
    record = str(settings.state / INSTALLED)
    known = (jobdir.read_json(record) or {}).get("hpk.sbatch")
    old = _content(target)
    if old == text:
        _remember(record, text)
        return f"Script    {target}"
    if old is not None and not is_forced and _digest(old) != known:
        new = target.with_name("hpk.sbatch.new")
        jobdir.write_bytes(str(new), text, 0o755)
        return f"Script    {target} has your edits and is kept; this version's is {new}"
    jobdir.write_bytes(str(target), text, 0o755)
    _remember(record, text)
    return f"Script    {target} (new)"


def _remember(record: str, text: bytes) -> None:
    jobdir.write_json(record, {"hpk.sbatch": _digest(text)})


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
