"""``hpk pull``: convert images before pods need them, on a host that reaches the registry."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpk import errors
from hpk.cli import serve, slurmaccess
from hpk.images import store
from hpk.network import sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpk import config
    from hpk.images import image

AUTH_FILES = ("~/.docker/config.json", "~/.apptainer/docker-config.json")
"""The files that `docker login` and `apptainer registry login` write."""


async def run(settings: config.Settings, *, names: Sequence[str], auth_file: Path | None) -> int:
    """Pull each image and print its digest and size; return 0 if all succeeded, else 1.

    Raises:
        errors.Fatal: The file with credentials cannot be read.
        errors.SlurmUnavailable: The gateway, which knows how pods' images are kept here, does not answer.
    """
    serve.configure_logging("warning", sys.stderr)
    login = credentials(auth_file)
    failed = 0
    with slurmaccess.slurm(settings) as slurm:
        has_one_id = sandbox.has_one_id(await slurm.site(apptainer=settings.apptainer))
    async with store.ImageStore(
        settings.images_for(has_one_id=has_one_id), insecure=settings.insecure_registries, has_one_owner=has_one_id
    ) as images:
        for name in names:
            try:
                with _spinner(f"Pulling {name}"):
                    found = await images.ensure(name, policy="Always", credentials=login, is_pinned=True)
            except (errors.ImageRefused, errors.Retryable) as error:
                failed += 1
                print(f"hpk: {error}", file=sys.stderr)
            else:
                print(line(found))
    return 1 if failed else 0


def line(found: image.Image) -> str:
    """Return the image's name, digest and size, and whether anything was fetched."""
    digest = found.image_id.rpartition("@")[2]
    how = f"pulled in {found.seconds:.1f} s" if found.was_pulled else "up to date"
    return f"{found.reference}  {digest}  {found.size_bytes / 1e6:.1f} MB  ({how})"


def credentials(auth_file: Path | None) -> dict[str, Any] | None:
    """Return the named Docker config, else the first one that exists.

    Raises:
        errors.Fatal: It is not a Docker config, or the named file does not exist.
    """
    candidates = [auth_file] if auth_file else [Path(name).expanduser() for name in AUTH_FILES]
    for path in candidates:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            if auth_file:
                raise errors.Fatal(f"Cannot read {path}: there is no such file") from None
            continue
        except (OSError, ValueError) as error:
            raise errors.Fatal(f"Cannot read credentials from {path}: {error}") from error
        if not isinstance(found, dict):
            raise errors.Fatal(f"Cannot read credentials from {path}: it is not a Docker config")
        if found.get("credsStore") or found.get("credHelpers"):
            print(f"hpk: {path} names a credential helper, which is not run; only 'auths' are used", file=sys.stderr)
        return found
    return None


@contextlib.contextmanager
def _spinner(text: str) -> Iterator[None]:
    """Show progress and the elapsed time, on a terminal only."""
    from rich import console, live, spinner  # noqa: PLC0415 - slow to import
    from rich import text as rich_text  # noqa: PLC0415

    screen = console.Console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    began = time.monotonic()
    turning = spinner.Spinner("dots")

    def draw() -> spinner.Spinner:
        turning.text = rich_text.Text(f"{text}  {time.monotonic() - began:.0f} s")
        return turning

    with live.Live(get_renderable=draw, console=screen, refresh_per_second=8, transient=True):
        yield
