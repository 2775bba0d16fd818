"""The services that every pod's worker uses, created once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from hpk import jobdir
    from hpk.aio import clock
    from hpk.pods import admit, agents, allocations, events, gate, prepare, statuswriter


@dataclass(frozen=True, kw_only=True)
class Services:
    """The services of a worker.

    Attributes:
        find: Returns the informer's copy of the pod with this UID.
        listen: Returns an event set at each change of a pod, and a function that stops listening.
        beside: Starts work that a pod's rounds do not wait for; a round follows its end.
        preparations: Limits the pods whose plans are in memory.
        submissions: Limits the pods that call sbatch.
    """

    find: Callable[[str], dict[str, Any] | None]
    listen: Callable[[str], tuple[asyncio.Event, Callable[[], None]]]
    beside: Callable[[str, Callable[[], Coroutine[Any, Any, None]]], asyncio.Task[None]]
    cluster: Callable[[], admit.Cluster]
    preparer: prepare.Preparer
    allocator: allocations.Allocator
    agents: agents.Agents
    reporter: statuswriter.StatusWriter
    recorder: events.EventRecorder
    state: jobdir.StateDirectory
    preparations: asyncio.Semaphore
    submissions: asyncio.Semaphore
    gate: gate.Gate
    clock: clock.Clock
