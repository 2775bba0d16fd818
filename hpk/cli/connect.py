"""``hpk connect``: a tunnel to the API server for every program on this host while the command runs."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from hpk import aiotasks, errors, kubeconfig
from hpk.aio import signals
from hpk.cli import reach, slurmaccess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpk import config
    from hpk.slurm import client

LOOK_SECONDS = 2.0


async def run(settings: config.Settings, *, port: int) -> int:
    """Hold the tunnel until Ctrl-C or a hang-up; meanwhile point the context ``hpk`` to it.

    Raises:
        errors.ApiUnavailable: No tunnel can be made; the message says why.
        errors.SlurmUnavailable: Slurm does not answer.
    """
    with slurmaccess.slurm(settings) as slurm:
        way = await reach.through(settings, slurm, port=port, is_held=True)
        with signals.caught() as stop, _led(settings, way) as is_led:
            print(f"Connected to the control plane's job {way.job_id} on {way.host} by {way.by}: {way.server}")
            if is_led:
                print(f"The context '{kubeconfig.NAME}' of {kubeconfig.path()} uses it until Ctrl-C")
            sys.stdout.flush()
            while stop.number is None:
                await aiotasks.in_time(stop.wait(), LOOK_SECONDS)
                await _look(slurm, way)
    return 0


async def _look(slurm: client.Slurm, way: reach.Way) -> None:
    """Check the tunnel, and restore its URL if a new control plane has put its own into the kubeconfig."""
    if await slurm.has_tunnel_ended():
        raise errors.ApiUnavailable("The tunnel has ended; run 'hpk connect' again")
    _, server = kubeconfig.current()
    if server and server != way.server:
        kubeconfig.point(way.server)


@contextlib.contextmanager
def _led(settings: config.Settings, way: reach.Way) -> Iterator[bool]:
    """Point the context to the tunnel while the block lasts; yield whether there is a context."""
    is_led = kubeconfig.point(way.server)
    try:
        yield is_led
    finally:
        if kubeconfig.current()[1] == way.server:
            try:
                kubeconfig.point(reach.url(settings))
            except errors.ApiUnavailable:
                kubeconfig.point(way.direct)
