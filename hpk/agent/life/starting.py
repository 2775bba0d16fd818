"""Asks crun for a container's run, and mounts an image that the pod did not have before."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from hpk import jobdir
from hpk.agent.boot import runs

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.life import podcontext


def last_line(log: str) -> str:
    """Return crun's last word in a log of its; empty if there is none."""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        return ([""] + [line.strip() for line in file if line.strip()])[-1]
    return ""


def begin(
    context: podcontext.PodContext,
    plan: records.ContainerPlan,
    number: int,
    *,
    neighbour: runs.ContainerRun | None = None,
) -> runs.ContainerRun | Exception:
    """Start crun, or say why that cannot be; a container's faults are its own, not the agent's."""
    try:
        return runs.begin(context.box, plan, number, neighbour=neighbour)
    except (OSError, LookupError, ValueError, TypeError) as error:
        return error


async def begin_anew(
    context: podcontext.PodContext, plan: records.ContainerPlan, number: int
) -> runs.ContainerRun | Exception:
    """Do the same with a plan whose image may be new to the pod."""
    try:
        await mount(context, plan)
    except OSError as error:
        return error
    return begin(context, plan, number)


async def mount(context: podcontext.PodContext, plan: records.ContainerPlan) -> None:
    """Mount the plan's image.

    Raises:
        OSError: It is not in sight, or no process can be had.
    """
    file, offset = plan["image_file"], plan["image_offset"]
    box = context.box
    if file.startswith(jobdir.SANDBOX_HOST + "/") and not os.path.exists(file):  # noqa: ASYNC240 - one look
        raise FileNotFoundError(
            f"Cannot see the image {plan['image']} in this pod, which has no path of its node's"
            " (a hostPath volume, or an image that is a SIF file)"
        )
    async with context.mounting:  # two may need the same image
        since = time.monotonic()
        box.images.start(file, offset=offset)
        if process := box.images.started(file, offset=offset):
            status = await context.reaper.wait(process, since=since)
            box.images.settled(file, offset=offset, status=status)
