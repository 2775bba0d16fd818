"""``apptainer run hpk.sif install``: one downloaded file becomes the whole installation."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from hpk import errors, jobdir
from hpk.cli import share

if TYPE_CHECKING:
    from hpk import config

IMAGE_VARIABLES = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
"""Where the runtime says which image this program runs from."""
INSTALLED = "installed.json"
"""In the state directory: the digest of the sbatch script that was put into the home, to tell an edited one."""


def run(settings: config.Settings, *, bin_directory: Path, is_forced: bool) -> int:
    """Install, or update; doing it again changes nothing.

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
    path = os.environ.get("USER_PATH") or os.environ.get("PATH", "")  # Apptainer keeps the host's under another name
    if str(bin_directory) not in map(os.path.normpath, path.split(os.pathsep)):
        print(f"Add {bin_directory} to your PATH:  export PATH={bin_directory}:$PATH")
    print("Look through ~/hpk.sbatch, then:  hpk up   (or: sbatch ~/hpk.sbatch)")
    return 0


def _image(settings: config.Settings) -> str:
    """Have the image at its place: as a second name of the same file where that is possible, else as a copy."""
    target = settings.state / "hpk.sif"
    named = next((os.environ[name] for name in IMAGE_VARIABLES if os.environ.get(name)), None)
    if named is None:
        return f"Image     not running from one; put hpk.sif at {target}"
    source = Path(named)
    if not source.is_file():
        raise errors.Fatal(
            f"Cannot install: the container does not see its own image {source}; "
            f"run: apptainer run --bind {source.parent} {source} install"
        )
    if target.exists() and target.samefile(source):
        return f"Image     {target}"
    # Under another name first: a control plane may run from the old file, which must not change under it.
    temporary = target.with_name(f"{target.name}.{os.urandom(4).hex()}.tmp")
    try:
        os.link(source, temporary)
    except OSError:
        shutil.copyfile(source, temporary)
        temporary.chmod(0o700)
    temporary.replace(target)
    return f"Image     {target}"


def _launcher(target: Path) -> str:
    """Put the launcher there; a link in its place is replaced, not followed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink() and _content(target) == share.file("hpk").read_bytes():
        return f"Launcher  {target}"
    jobdir.write_bytes(str(target), share.file("hpk").read_bytes(), 0o755)
    target.chmod(0o755)
    return f"Launcher  {target} (new)"


def _script(settings: config.Settings, target: Path, *, is_forced: bool) -> str:
    """Put the sbatch script there, unless the user's own edits would be lost."""
    text = share.file("hpk.sbatch").read_bytes()
    record = str(settings.state / INSTALLED)
    known = (jobdir.read_json(record) or {}).get("hpk.sbatch")
    old = _content(target)
    if old == text:
        _remember(record, text)
        return f"Script    {target}"
    if old is not None and not is_forced and _digest(old) != known:
        new = target.with_name("hpk.sbatch.new")
        jobdir.write_bytes(str(new), text, 0o755)
        return f"Script    {target} is yours and stays as it is; this version's is {new}"
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
