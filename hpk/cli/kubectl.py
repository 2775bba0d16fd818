"""``hpk kubectl``: the kubectl in hpk.sif, for hosts without one or without a direct way to the API server."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, NoReturn

from hpk import errors, kubeconfig
from hpk.cli import reach, slurmaccess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpk import config

PROGRAM = "/opt/hpk/bin/kubectl"
ALONE = ("config", "completion", "help", "kustomize", "options", "plugin", "__complete", "__completeNoDesc")
"""Commands that contact no server."""
UNASKED = ("--dry-run=client", "--local", "--local=true")
"""Options with which most commands contact no server and all can do without one."""
ELSEWHERE = ("--server", "-s", "--kubeconfig", "--cluster", "--context", "-h", "--help", "--client")
"""Options that name another server, or need none."""


def run(settings: config.Settings, arguments: Sequence[str]) -> NoReturn:
    """Replace this process with kubectl.

    Raises:
        errors.ApiUnavailable: kubectl needs the API server, and this host cannot reach it.
        errors.SlurmUnavailable: The gateway, which may open a tunnel, does not answer.
        errors.Fatal: This is not hpk.sif.
    """
    environment = dict(os.environ)
    if is_for_us(arguments):
        try:
            environment |= _led(settings)
        except (errors.ApiUnavailable, errors.SlurmUnavailable):
            if not is_unasked(arguments):
                raise
    try:
        os.execve(PROGRAM, ["kubectl", *arguments], environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        raise errors.Fatal(f"Cannot run {PROGRAM}: {error.strerror}; it is in hpk.sif only") from error


def is_for_us(arguments: Sequence[str]) -> bool:
    """Return whether kubectl will contact our API server."""
    options = _options(arguments)
    words = [word for before, word in zip(["", *options], options, strict=False) if before not in ("-n", "--namespace")]
    verb = next((word for word in words if not word.startswith("-")), "")
    if not verb or verb in ALONE or any(word.split("=")[0] in ELSEWHERE for word in options):
        return False
    return kubeconfig.current()[0] in ("", kubeconfig.NAME)


def is_unasked(arguments: Sequence[str]) -> bool:
    """Return whether kubectl can do without a server; if not, kubectl itself reports it."""
    return any(word in UNASKED for word in _options(arguments))


def _options(arguments: Sequence[str]) -> list[str]:
    """Return kubectl's own words; those after -- are for a pod."""
    return list(arguments[: arguments.index("--")] if "--" in arguments else arguments)


def _led(settings: config.Settings) -> dict[str, str]:
    """Return the variables that point kubectl to the API server, if its kubeconfig does not."""
    way = asyncio.run(_way(settings))
    if not way.by and kubeconfig.current()[1] == way.server:
        return {}
    return {"KUBECONFIG": f"{reach.overlay(settings, way)}:{kubeconfig.path()}"}


async def _way(settings: config.Settings) -> reach.Way:
    with slurmaccess.slurm(settings) as slurm:
        return await reach.find(settings, slurm)
