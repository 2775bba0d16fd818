"""A local copy of some objects of the API server, kept current by list and watch.

As in client-go's reflector, a broken watch resumes from the last resourceVersion seen; if that is too old (410), the
objects are listed again. Subscribers learn which object changed, not how: they compare the desired with the actual
state (level, not edge), so a missed or repeated call does no harm.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from hpk import errors
from hpk.aio import backoff

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from hpk.kube import client

LOG = structlog.get_logger(__name__)
PAUSES = backoff.BackoffPolicy(first_seconds=0.1, cap_seconds=5.0, healthy_seconds=5.0)
"""Between a watch that failed or ended and the next; one that has lasted is replaced at once."""


class Informer:
    """A cache of the objects at one path, by UID, whose dicts are read-only; ``synced`` is set after the first list."""

    def __init__(
        self,
        kube: client.Kube,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        on_change: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.synced = asyncio.Event()
        self._kube, self._path, self._query, self._on_change = kube, path, dict(query or {}), on_change
        self._names: dict[tuple[str, str], str] = {}

    def named(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the object of this name, or None."""
        return self.objects.get(self._names.get((namespace, name), ""))

    async def run(self) -> None:
        """Keep the copy current until cancelled; retry without end while the API server does not respond."""
        pauses = backoff.Backoff(PAUSES)
        version = ""
        while True:
            pauses.started()
            trouble = "the server ended the watch"
            try:
                version = version or await self._list()
                version = await self._watch(version)
            except errors.Conflict:
                version, trouble = "", "its version is too old"
            except Exception as error:  # noqa: BLE001 - the watch survives any response
                version, trouble = version if isinstance(error, errors.ApiUnavailable) else "", str(error)
                LOG.warning("Cannot watch, will try again", path=self._path, error=trouble)
            pause = pauses.failed()
            if pauses.failures > 1:  # servers end watches now and then; that is not a failure
                LOG.debug("Watching again", path=self._path, after=trouble, pause_seconds=round(pause, 1))
                await asyncio.sleep(pause)

    async def _list(self) -> str:
        answer = await self._kube.get(self._path, query={**self._query, "resourceVersion": "0"})
        found = {item["metadata"]["uid"]: item for item in answer["items"]}
        for uid in self.objects.keys() - found.keys():
            self._forget(uid)
        for item in found.values():
            self._keep(item)
        self.synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        events: AsyncIterator[dict[str, Any]] = self._kube.watch(
            self._path, query=self._query, resource_version=version
        )
        async for event in events:
            item = event["object"]
            version = item["metadata"]["resourceVersion"]
            match event["type"]:
                case "ADDED" | "MODIFIED":
                    self._keep(item)
                case "DELETED":
                    self._forget(item["metadata"]["uid"])
                case _:  # BOOKMARK: only the version counts
                    pass
        return str(version)

    def _keep(self, item: dict[str, Any]) -> None:
        meta = item["metadata"]
        item.pop("managedFields", None)
        meta.pop("managedFields", None)
        self.objects[meta["uid"]] = item
        self._names[meta.get("namespace", ""), meta["name"]] = meta["uid"]
        self._on_change(meta["uid"])

    def _forget(self, uid: str) -> None:
        item = self.objects.pop(uid, None)
        if item is not None:
            key = (item["metadata"].get("namespace", ""), item["metadata"]["name"])
            if self._names.get(key) == uid:
                del self._names[key]
        self._on_change(uid)
