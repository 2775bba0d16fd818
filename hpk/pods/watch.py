"""The pods of the node, and a worker for each that needs one.

Pods that are over have no worker, and their cached copies are trimmed to what their logs and deletion need, so that a
thousand finished pods cost little.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import structlog

from hpk import aiotasks
from hpk.kube import informer
from hpk.pods import events, queue, status

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    from hpk import jobdir
    from hpk.kube import client
    from hpk.pods import occupants, statuswriter, worker

LOG = structlog.get_logger(__name__)


class Pods:
    """The kubelet's pods, which `run` handles until cancelled; a `hpk.node.podsource.PodSource` for its API.

    Args:
        make_worker: Returns the worker of a pod; called when its first round begins.
    """

    def __init__(
        self,
        kube: client.Kube,
        *,
        node: str,
        state: jobdir.StateDirectory,
        occupants: occupants.Occupants,
        recorder: events.EventRecorder,
        reporter: statuswriter.StatusWriter,
        make_worker: Callable[[str], worker.Worker],
    ) -> None:
        self._state, self._occupants, self._recorder, self._reporter = state, occupants, recorder, reporter
        self._make_worker = make_worker
        self.queue = queue.Queue(self._round, on_failure=self._failed)
        query = {"fieldSelector": f"spec.nodeName={node}"}
        self.informer = informer.Informer(kube, "/api/v1/pods", query=query, on_change=self._changed)
        self._workers: dict[str, worker.Worker] = {}
        self._listeners: dict[str, set[asyncio.Event]] = {}
        self._beside: set[asyncio.Task[None]] = set()

    def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the pod of this name with its newest written status, or None."""
        raw = self.informer.named(namespace, name)
        return None if raw is None else self._newest(raw)

    def pods(self) -> Iterable[dict[str, Any]]:
        """Return all pods of the node, as `find` does."""
        return [self._newest(raw) for raw in self.informer.objects.values()]

    def _newest(self, raw: dict[str, Any]) -> dict[str, Any]:
        current = self._reporter.current(raw)
        return raw if current is raw else {**raw, "status": current["status"]}

    async def wait_for_change(self, uid: str) -> None:
        """Wait for the next change of the pod; return at once if it is gone."""
        changed, stop = self.listen(uid)
        try:
            if uid in self.informer.objects:
                await changed.wait()
        finally:
            stop()

    def has_living(self, uid: str) -> bool:
        """Return whether a pod with this UID exists and has not ended."""
        raw = self.informer.objects.get(uid)
        return raw is not None and not status.is_terminal(raw)

    def mark(self, uid: str) -> None:
        """Mark a pod that may have changed."""
        self.queue.mark(uid)
        for event in self._listeners.get(uid, ()):
            event.set()

    def _changed(self, uid: str) -> None:
        raw = self.informer.objects.get(uid)
        if raw is not None and status.is_terminal(raw):
            self.informer.objects[uid] = trimmed(raw)
        self._occupants.update(uid, raw)
        self.mark(uid)

    def listen(self, uid: str) -> tuple[asyncio.Event, Callable[[], None]]:
        """Return an event set at each change of the pod, and a function that stops listening."""
        event = asyncio.Event()
        self._listeners.setdefault(uid, set()).add(event)

        def stop() -> None:
            self._listeners.get(uid, set()).discard(event)
            if not self._listeners.get(uid, True):
                del self._listeners[uid]

        return event, stop

    def beside(self, uid: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Start work that a pod's rounds do not wait for; a round follows its end."""
        task = asyncio.create_task(self._guarded(uid, work), name=f"beside pod {uid}")
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def _guarded(self, uid: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except Exception as error:  # a pod's error must not affect others
            LOG.exception("Cannot finish work beside a pod's rounds", uid=uid, error=repr(error))
            self._failed(uid, error)
        finally:
            self.mark(uid)

    def _failed(self, uid: str, error: Exception) -> None:
        if (raw := self.informer.objects.get(uid)) is not None:
            events.tell_failure(self._recorder, raw, "FailedSync", error)

    def is_known(self, uid: str) -> bool:
        """Return whether the API server has the pod, or a worker handles it."""
        return uid in self.informer.objects or uid in self._workers

    def is_over(self, uid: str) -> bool:
        """Return whether the pod's phase is final."""
        raw = self.informer.objects.get(uid)
        return raw is not None and status.is_terminal(raw)

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.informer.run(), name="pods informer")
                await self.informer.synced.wait()
                await self._mark_leftovers()
                group.create_task(self.queue.run(), name="pods queue")
        finally:
            await aiotasks.cancel(*self._beside)

    async def _mark_leftovers(self) -> None:
        """Mark pods that have a directory but no object: they were deleted while no kubelet ran."""
        try:
            uids = await asyncio.to_thread(os.listdir, self._state.pods)
        except FileNotFoundError:
            return
        except OSError as error:  # the next start looks again; existing pods must not wait for it
            LOG.warning("Cannot list the directories of deleted pods", error=str(error))
            return
        for uid in uids:
            self.queue.mark(uid)

    async def _round(self, uid: str) -> float | None:
        one = self._workers.get(uid) or self._workers.setdefault(uid, self._make_worker(uid))
        seconds = await one.sync()
        if one.is_done:
            del self._workers[uid]
            self.queue.forget(uid)
            return None
        return seconds


def trimmed(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a finished pod without the fields that only a future pod needs: environments, volumes, annotations."""
    spec, meta = raw["spec"], raw["metadata"]
    keys = ["name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"]
    keys += ["deletionGracePeriodSeconds", "finalizers", "labels"]
    slim = {
        key: [{"name": c["name"], "image": c.get("image", "")} | _policy(c) for c in spec.get(key) or []]
        for key in ("initContainers", "containers", "ephemeralContainers")
        if spec.get(key)
    }
    kept = {key: spec[key] for key in ("nodeName", "restartPolicy", "terminationGracePeriodSeconds") if key in spec}
    return {
        "metadata": {key: meta[key] for key in keys if key in meta},
        "spec": {**kept, **slim},
        "status": raw.get("status", {}),
    }


def _policy(container: dict[str, Any]) -> dict[str, Any]:
    return {"restartPolicy": container["restartPolicy"]} if "restartPolicy" in container else {}
