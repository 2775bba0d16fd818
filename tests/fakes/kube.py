"""An API server in memory: objects by path, versions, patches, conflicts, watches, and a record of all calls.

It speaks the methods of :class:`hpk.kube.client.Kube` and behaves as the API server does in what HPK relies on:
404 and 409, ``resourceVersion`` and ``uid``, the status subresource, strategic merge of the lists that we
patch, finalizers and grace of pods.  It validates nothing.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import uuid
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpk import errors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

Object = dict[str, Any]

MERGE_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "podIPs": "ip",
    "hostIPs": "ip",
    "ownerReferences": "uid",
}
"""Lists that a strategic merge patch merges, by the key of their items; all others are replaced."""
SUBRESOURCES = ("status", "binding", "token", "eviction")
CLUSTER_SCOPED_PARENTS = 2


@dataclass(frozen=True)
class Call:
    """One request as it came; ``body`` is a copy."""

    verb: str
    path: str
    body: Any = None
    kind: str = ""


class FakeKube:
    """The fake server and client in one.

    Attributes:
        calls: Every request, in order.
        reactions: What answers a POST to a path instead of storing it: ``reactions[path] = lambda body: ...``
            (reviews, tokens, bindings).
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.reactions: dict[str, Callable[[Object], Object]] = {}
        self._objects: dict[str, Object] = {}
        self._versions = itertools.count(1)
        self._failures: deque[tuple[str, str, errors.HpkError]] = deque()
        self._history: list[tuple[int, str, Object]] = []
        self._changed = asyncio.Event()

    # For tests.

    def put(self, path: str, body: Object) -> Object:
        """Store the object at its own path, as somebody else than the client under test would."""
        return self._store(path, copy.deepcopy(body), old=self._objects.get(path))

    def peek(self, path: str) -> Object:
        """The object as stored; KeyError if there is none.  Not recorded."""
        return copy.deepcopy(self._objects[path])

    def remove(self, path: str) -> None:
        """Delete at once, as ``kubectl delete --force`` does."""
        self._forget(path)

    def fail(self, error: errors.HpkError, *, verb: str = "", path: str = "") -> None:
        """Let the next request of this verb (any if empty) to this path fail with error."""
        self._failures.append((verb, path, error))

    def verbs(self, path: str = "") -> list[str]:
        """The verbs of all calls to this path (all paths if empty), in order."""
        return [call.verb for call in self.calls if path in ("", call.path)]

    # The methods of hpk.kube.client.Kube.

    async def get(self, path: str, *, query: Mapping[str, Any] | None = None) -> Object:
        """The object, or the list of what lies directly under this path."""
        self._called("get", path)
        if path in self._objects:
            return copy.deepcopy(self._objects[path])
        if _is_collection(path):
            items = [item for key, item in sorted(self._objects.items()) if _is_listed(path, key)]
            items = [copy.deepcopy(item) for item in items if _is_selected(item, query or {})]
            meta = {"resourceVersion": str(self._version())}
            if limit := int((query or {}).get("limit") or 0):
                start = int((query or {}).get("continue") or 0)
                meta |= {"continue": str(start + limit)} if start + limit < len(items) else {}
                items = items[start : start + limit]
            return {"kind": "List", "metadata": meta, "items": items}
        raise _not_found(path)

    async def list(self, path: str, *, query: Mapping[str, Any] | None = None) -> list[Object]:
        """The items under this path."""
        items: list[Object] = (await self.get(path, query=query))["items"]
        return items

    async def create(self, path: str, body: Object) -> Object:
        """Store a new object, or answer as the path's reaction says."""
        self._called("create", path, body)
        if path in self.reactions:
            return copy.deepcopy(self.reactions[path](copy.deepcopy(body)))
        made = copy.deepcopy(body)
        meta = made.setdefault("metadata", {})
        if "name" not in meta:
            meta["name"] = meta.get("generateName", "") + uuid.uuid4().hex[:5]
        at = f"{path}/{meta['name']}"
        if at in self._objects:
            raise errors.Conflict(f'"{meta["name"]}" already exists')
        return copy.deepcopy(self._store(at, made, old=None))

    async def replace(self, path: str, body: Object) -> Object:
        """Replace the object (or only its status) if the version is still the one given."""
        self._called("replace", path, body)
        at, is_status = _resolve(path)
        old = self._existing(at)
        self._check(old, body)
        made = {**old, "status": body.get("status", {})} if is_status else copy.deepcopy(body)
        return copy.deepcopy(self._store(at, copy.deepcopy(made), old=old))

    async def patch(self, path: str, body: Any, *, kind: str = "strategic") -> Object:
        """Merge body into the object; a patch of the status leaves the spec alone, and the other way round."""
        self._called("patch", path, body, kind)
        at, is_status = _resolve(path)
        old = self._existing(at)
        if kind == "json":
            made = _json_patched(copy.deepcopy(old), body)
        else:
            self._check(old, body)
            made = merged(old, body, is_strategic=kind == "strategic")
        kept = "spec" if is_status else "status"
        made.pop(kept, None)
        if kept in old:
            made[kept] = copy.deepcopy(old[kept])
        return copy.deepcopy(self._store(at, made, old=old))

    async def apply(self, path: str, body: Object, *, manager: str) -> Object:
        """Merge body into the object, which is created if it is missing."""
        self._called("apply", path, body, manager)
        old = self._objects.get(path)
        made = merged(old, body, is_strategic=True) if old else copy.deepcopy(body)
        made.setdefault("metadata", {}).setdefault("name", path.rpartition("/")[2])
        return copy.deepcopy(self._store(path, made, old=old))

    async def delete(self, path: str, *, body: Object | None = None) -> Object:
        """Delete, or mark a pod with grace (and anything with finalizers) as being deleted."""
        self._called("delete", path, body)
        old = self._existing(path)
        wanted = ((body or {}).get("preconditions") or {}).get("uid")
        if wanted is not None and wanted != old["metadata"]["uid"]:
            raise errors.Conflict(f"the UID in the precondition ({wanted}) is not that of the object")
        grace = (body or {}).get("gracePeriodSeconds", 30 if "/pods/" in path else 0)
        if grace == 0 and not old["metadata"].get("finalizers"):
            self._forget(path)
            return old
        made = copy.deepcopy(old)
        made["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
        return copy.deepcopy(self._store(path, made, old=old))

    async def watch(self, path: str, *, query: Mapping[str, Any], resource_version: str) -> AsyncGenerator[Object]:
        """Yield every change under this path since the version, then wait for more."""
        self._called("watch", path)
        seen = int(resource_version)
        while True:
            changed = self._changed
            for version, kind, item in list(self._history):
                key = _key_of(item)
                if version > seen and _is_listed(path, key) and _is_selected(item, query):
                    seen = version
                    yield {"type": kind, "object": _published(item)}
            await changed.wait()

    async def close(self) -> None:
        """Nothing to close."""

    # Inside.

    def _called(self, verb: str, path: str, body: Any = None, kind: str = "") -> None:
        self.calls.append(Call(verb, path, copy.deepcopy(body), kind))
        for entry in list(self._failures):
            if entry[0] in ("", verb) and entry[1] in ("", path):
                self._failures.remove(entry)
                raise entry[2]

    def _existing(self, path: str) -> Object:
        if path not in self._objects:
            raise _not_found(path)
        return self._objects[path]

    def _check(self, old: Object, body: Object) -> None:
        meta = body.get("metadata") or {}
        for key in ("uid", "resourceVersion"):
            if meta.get(key, old["metadata"][key]) != old["metadata"][key]:
                raise errors.Conflict(f"the object has been modified: {key} is {old['metadata'][key]}")

    def _version(self) -> int:
        return self._history[-1][0] if self._history else 0

    def _store(self, path: str, made: Object, *, old: Object | None) -> Object:
        meta = made.setdefault("metadata", {})
        meta.setdefault("name", path.rpartition("/")[2])
        if "/namespaces/" in path:
            meta.setdefault("namespace", path.split("/namespaces/")[1].partition("/")[0])
        meta["uid"] = old["metadata"]["uid"] if old else meta.get("uid") or str(uuid.uuid4())
        if old is not None and _without_version(old) == _without_version(made):
            return old
        if old is not None and meta.get("deletionTimestamp") and not meta.get("finalizers", ["none set"]):
            self._forget(path)
            return made
        version = next(self._versions)
        meta["resourceVersion"] = str(version)
        self._objects[path] = made
        self._announce(version, "MODIFIED" if old else "ADDED", path, made)
        return made

    def _forget(self, path: str) -> None:
        gone = self._objects.pop(path)
        self._announce(next(self._versions), "DELETED", path, gone)

    def _announce(self, version: int, kind: str, path: str, item: Object) -> None:
        shown = copy.deepcopy(item)
        shown["metadata"]["resourceVersion"] = str(version)
        shown["\0path"] = path
        self._history.append((version, kind, shown))
        self._changed.set()
        self._changed = asyncio.Event()


def merged(old: Any, patch: Any, *, is_strategic: bool, key: str = "") -> Any:
    """What the patch makes of old: JSON merge, or strategic merge of the lists in MERGE_KEYS."""
    if isinstance(patch, dict):
        made = dict(old) if isinstance(old, dict) else {}
        for name, value in patch.items():
            if value is None:
                made.pop(name, None)
            elif not (is_strategic and name.startswith("$")):
                made[name] = merged(made.get(name), value, is_strategic=is_strategic, key=name)
        return copy.deepcopy(made)
    if is_strategic and isinstance(patch, list) and key in MERGE_KEYS:
        return _merged_list(old or [], patch, MERGE_KEYS[key])
    return copy.deepcopy(patch)


def _merged_list(old: list[Object], patch: list[Object], by: str) -> list[Object]:
    if any(item.get("$patch") == "replace" for item in patch):
        return copy.deepcopy([item for item in patch if "$patch" not in item])
    made = copy.deepcopy(old)
    for item in patch:
        place = next((index for index, have in enumerate(made) if have.get(by) == item.get(by)), None)
        if item.get("$patch") == "delete":
            made = [have for have in made if have.get(by) != item.get(by)]
        elif place is None:
            made.append(copy.deepcopy(item))
        else:
            made[place] = merged(made[place], item, is_strategic=True)
    return made


def _json_patched(target: Object, operations: list[Object]) -> Object:
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        place: Any = target
        for parent in parents:
            place = place[int(parent)] if isinstance(place, list) else place[parent]
        where: Any = int(last) if isinstance(place, list) and last != "-" else last
        match operation["op"]:
            case "add" if isinstance(place, list):
                place.insert(len(place) if where == "-" else where, operation["value"])
            case "add" | "replace":
                place[where] = operation["value"]
            case "remove":
                del place[where]
            case "test" if place[where] != operation["value"]:
                raise errors.Rejected(f"testing {operation['path']}: not equal")
    return target


def _resolve(path: str) -> tuple[str, bool]:
    """The object's own path, and whether the path named its status."""
    parent, _, last = path.rpartition("/")
    if last in SUBRESOURCES and not _is_collection(parent):
        return parent, last == "status"
    return path, False


def _is_collection(path: str) -> bool:
    """Whether the path names a kind, not one object of it."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > CLUSTER_SCOPED_PARENTS:
        rest = rest[2:]
    return len(rest) == 1


def _is_listed(path: str, key: str) -> bool:
    """Whether the object at key belongs to the collection at path (of one namespace, or of all)."""
    parent = key.rpartition("/")[0]
    if parent == path:
        return True
    group, _, kind = path.rpartition("/")
    return "/namespaces/" not in path and parent.startswith(f"{group}/namespaces/") and parent.endswith(f"/{kind}")


def _is_selected(item: Object, query: Mapping[str, Any]) -> bool:
    for clause in filter(None, str(query.get("fieldSelector", "")).split(",")):
        negated = "!=" in clause
        name, _, value = clause.replace("!=", "=").replace("==", "=").partition("=")
        found: Any = item
        for part in name.split("."):
            found = (found or {}).get(part)
        if ((found or "") == value) == negated:
            return False
    return True


def _key_of(item: Object) -> str:
    return str(item["\0path"])


def _published(item: Object) -> Object:
    return copy.deepcopy({key: value for key, value in item.items() if key != "\0path"})


def _without_version(item: Object) -> Object:
    meta = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return {**item, "metadata": meta}


def _not_found(path: str) -> errors.NotFound:
    return errors.NotFound(f'"{path.rpartition("/")[2]}" not found')
