"""Mounts images that are new to the pod, and reads crun's log."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from hpk import jobdir

if TYPE_CHECKING:
    from hpk import records
    from hpk.agent.life import podcontext


def last_line(log: str) -> str:
    """Return the last line of a log of crun's; empty if there is none."""
    with contextlib.suppress(OSError), open(log, encoding="utf-8", errors="replace") as file:
        return ([""] + [line.strip() for line in file if line.strip()])[-1]
    return ""


async def mount(context: podcontext.PodContext, plan: records.ContainerPlan) -> OSError | None:
    """Mount the plan's image; return why that is impossible, or None."""
    file, offset = plan["image_file"], plan["image_offset"]
    box = context.box
    if file.startswith(jobdir.SANDBOX_HOST + "/") and not os.path.exists(file):  # noqa: ASYNC240 - one look
        return FileNotFoundError(
            f"Cannot see the image {plan['image']} in this pod: only a pod that starts with a hostPath volume"
            " or an image that is a SIF file sees its node's files"
        )
    async with context.mounting:  # two may need the same image
        since = time.monotonic()
        try:
            box.images.start(file, offset=offset)
        except OSError as error:  # no process or directory can be made
            return error
        if process := box.images.started(file, offset=offset):
            status = await context.reaper.wait(process, since=since)
            box.images.settled(file, offset=offset, status=status)
    return None
