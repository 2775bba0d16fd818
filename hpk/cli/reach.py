"""How this host reaches the API server: straight, or, where its port is filtered, by a tunnel through Slurm or ssh."""

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
        direct: The API server's own.
        by: ``srun`` or ``ssh`` where it is a tunnel.
        host: The control plane's.
        job_id: The control plane's.
    """

    server: str
    direct: str
    by: str = ""
    host: str = ""
    job_id: str = ""

    def __str__(self) -> str:
        return f"{self.server}, by {self.by} to {self.host}" if self.by else self.server


async def find(settings: config.Settings, slurm: client.Slurm) -> Way:
    """The best way from this host; opens a tunnel in the background if there is none and no other way.

    Raises:
        errors.ApiUnavailable: There is no way, or no control plane; says what was tried.
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
            raise errors.ApiUnavailable(f"{direct} cannot be reached from this host: {problem}. {error}") from error
    return await through(settings, slurm)


async def through(settings: config.Settings, slurm: client.Slurm, *, port: int = 0, is_held: bool = False) -> Way:
    """A tunnel: the one that serves already, or a new one.

    Its port is on this host's loopback; 0 takes the API server's own, if that is free here. One that is held ends with
    the gateway, not when it is idle.

    Raises:
        errors.ApiUnavailable: There can be none; says why.
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
    """Whether one serves on this host, as far as its record tells."""
    return Path(protocol.tunnel_record(str(settings.state))).exists()


def url(settings: config.Settings) -> str:
    """The API server's, as the control plane wrote it down.

    Raises:
        errors.ApiUnavailable: It has not.
    """
    return str(_cluster(settings)["server"])


def overlay(settings: config.Settings, way: Way) -> Path:
    """A kubeconfig that leads kubectl this way if it stands before the user's own; this host's own file.

    On a home without room it is beside the gateway, and goes with that: kubectl is what makes room in a cluster.
    """
    cluster = {"name": kubeconfig.NAME, "cluster": _cluster(settings) | {"server": way.server}}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "clusters": [cluster]}).encode()
    path = Path(settings.directory.endpoint_directory) / f"kubeconfig-{socket.gethostname()}"
    try:
        jobdir.make_directory(str(path.parent))
        # Anew each time: the launcher trusts one that is newer than the control plane.
        jobdir.write_bytes(str(path), text, is_durable=False)
    except OSError:
        beside = settings.gateway.parent if settings.gateway else None
        path = Path(tempfile.mkdtemp(prefix="hpk.", dir=beside)) / "kubeconfig"
        jobdir.write_bytes(str(path), text, is_durable=False)
    return path


async def refusal(server: str) -> str:
    """Why nothing answers at this URL; empty if something does."""
    place = urlsplit(server)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(place.hostname, place.port), DIRECT_SECONDS)
    except TimeoutError:
        return f"no answer in {DIRECT_SECONDS:.0f} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)  # asyncio puts words of its own into strerror
    writer.close()
    return ""


async def is_filtered(host: str) -> bool:
    """Whether connections to a host's ports vanish: one on which nobody listens refuses them, if they arrive."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, UNUSED_PORT), DIRECT_SECONDS)
    except TimeoutError:
        return True
    except OSError as error:
        return error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    writer.close()
    return False


def _cluster(settings: config.Settings) -> dict[str, Any]:
    try:
        document = yaml.safe_load(Path(settings.directory.kubeconfig).read_bytes())
        found: dict[str, Any] = document["clusters"][0]["cluster"]
    except (OSError, yaml.YAMLError, LookupError, TypeError) as error:
        raise errors.ApiUnavailable("No control plane runs; 'hpk up' starts it") from error
    return found
