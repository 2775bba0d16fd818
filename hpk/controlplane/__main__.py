"""Run the control plane alone, for development: ``python -m hpk.controlplane --state DIR``."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time

from hpk import config, errors
from hpk.aio import signals
from hpk.controlplane import plane


def main() -> int:
    """Run the control plane until a signal arrives, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hpk.controlplane", description=__doc__)
    parser.add_argument("--state", required=True, help="the state directory; created if missing")
    parser.add_argument("--address", default="127.0.0.1", help="an IPv4 address of this host (default: loopback)")
    options = parser.parse_args()
    code = 0
    try:
        settings = config.load(environment=os.environ, flags={"state": options.state, "address": options.address})
        asyncio.run(_run(settings))
    except* errors.HpkError as group:
        for error in group.exceptions:
            print(error, file=sys.stderr)  # noqa: T201 - a command
        code = 1
    return code


async def _run(settings: config.Settings) -> None:
    started_at = time.monotonic()
    with signals.caught() as stop:
        async with plane.prepared(settings) as control_plane, asyncio.TaskGroup() as group:
            running = group.create_task(control_plane.run())
            telling = group.create_task(_tell(control_plane, started_at=started_at))
            await stop.wait()
            telling.cancel()
            running.cancel()


async def _tell(control_plane: plane.ControlPlane, *, started_at: float) -> None:
    await control_plane.ready.wait()
    kubeconfig = control_plane.layout.kubeconfig("admin")
    seconds = time.monotonic() - started_at
    print(f"ready after {seconds:.1f} s: kubectl --kubeconfig {kubeconfig} get namespaces", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
