"""The way from this host to the API server: direct, or by a tunnel through Slurm or ssh if its port is filtered."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import yaml

from hpk import errors, jobdir, kubeconfig
from hpk.host import protocol

if TYPE_CHECKING:
    from hpk import config
    from hpk.slurm import client

DIRECT_SECONDS = 2.0
"""How long a connection to another host of the same cluster may take."""
UNUSED_PORT = 47_811


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to the API server.

    Attributes:
        server: The URL to use on this host.
        direct: The API server's own URL.
        by: ``srun`` or ``ssh`` for a tunnel, else empty.
        host: The control plane's host.
        job_id: The control plane's job.
    """

    server: str
    direct: str
    by: str = ""
    host: str = ""
    job_id: str = ""

    def __str__(self) -> str:
        return f"{self.server}, by {self.by} to {self.host}" if self.by else self.server


async def find(settings: config.Settings, slurm: client.Slurm) -> Way:
    """Return the best way from this host; open a tunnel in the background if that is the only one.

    Raises:
        errors.ApiUnavailable: There is no way, or no control plane; the message says what was tried.
        errors.SlurmUnavailable: The gateway does not answer.
    """
    direct = url(settings)
    if not has_tunnel(settings):
        problem = await refusal(direct)
        if not problem:
            return Way(server=direct, direct=direct)
        try:
            return await through(settings, slurm)
        except errors.ApiUnavailable as error:
            raise errors.ApiUnavailable(f"Cannot reach {direct} from this host: {problem}. {error}") from error
    return await through(settings, slurm)


async def through(settings: config.Settings, slurm: client.Slurm, *, port: int = 0, is_held: bool = False) -> Way:
    """Return the existing tunnel or a new one.

    Its port is on the loopback; 0 takes the API server's own, if free. A held one ends with the gateway, not when idle.

    Raises:
        errors.ApiUnavailable: No tunnel can be made; the message says why.
        errors.SlurmUnavailable: The gateway does not answer.
    """
    options = [f"--state={settings.state.absolute()}", f"--port={port}"]
    options += [] if settings.connect == "auto" else [f"--ways={settings.connect}"]
    options += ["--hold"] if is_held else []
    record = await slurm.tunnel(*options)
    return Way(
        server=f"https://127.0.0.1:{record['port']}",
        direct=url(settings),
        by=str(record["way"]),
        host=str(record["host"]),
        job_id=str(record["job_id"]),
    )


def has_tunnel(settings: config.Settings) -> bool:
    """Return whether this host has a tunnel, according to its record."""
    return Path(protocol.tunnel_record(str(settings.state))).exists()


def url(settings: config.Settings) -> str:
    """Return the API server's URL as the control plane recorded it.

    Raises:
        errors.ApiUnavailable: It has not.
    """
    return str(_cluster(settings)["server"])


def overlay(settings: config.Settings, way: Way) -> Path:
    """Write this host's kubeconfig, which takes kubectl this way if it precedes the user's own; return its path.

    If the home is full, it goes beside the gateway and ends with that, because kubectl is needed to make room.
    """
    cluster = {"name": kubeconfig.NAME, "cluster": _cluster(settings) | {"server": way.server}}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}).encode()
    path = Path(settings.directory.endpoint_directory) / f"kubeconfig-{socket.gethostname()}"
    try:
        jobdir.make_directory(str(path.parent))
        # Rewritten each time: the launcher trusts one that is newer than the control plane.
        jobdir.write_bytes(str(path), text, is_durable=False)
    except OSError:
        beside = settings.gateway.parent if settings.gateway else None
        path = Path(tempfile.mkdtemp(prefix="hpk.", dir=beside)) / "kubeconfig"
        jobdir.write_bytes(str(path), text, is_durable=False)
    return path


async def refusal(server: str) -> str:
    """Return why nothing answers at this URL; empty if something does."""
    place = urlsplit(server)
    error = await _failure(place.hostname, place.port)
    if isinstance(error, TimeoutError):
        return f"no answer in {DIRECT_SECONDS:.0f} s"
    return (os.strerror(error.errno) if error.errno else str(error)) if error else ""  # asyncio changes strerror


async def is_filtered(host: str) -> bool:
    """Return whether connections to a host's ports vanish; a port where nobody listens would refuse them."""
    error = await _failure(host, UNUSED_PORT)
    return isinstance(error, TimeoutError) or (
        error is not None and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    )


async def _failure(host: str | None, port: int | None) -> OSError | None:
    """Return why a connection fails; None if it does not."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), DIRECT_SECONDS)
    except OSError as error:  # TimeoutError is one
        return error
    writer.close()
    return None


def _cluster(settings: config.Settings) -> dict[str, Any]:
    try:
        document = yaml.safe_load(Path(settings.directory.kubeconfig).read_bytes())
        found: dict[str, Any] = document["clusters"][0]["cluster"]
    except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
        raise errors.ApiUnavailable("Cannot reach the API server: no control plane runs; 'hpk up' starts it") from error
    return found
