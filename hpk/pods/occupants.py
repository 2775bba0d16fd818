"""The pods that occupy the node, as a scheduler counts them: bound or being bound, and not over."""

from __future__ import annotations

import contextlib
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec

from hpk.kube import v1
from hpk.pods import resources, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Object = dict[str, Any]


class Occupants:
    """The node's occupants, kept by the watch of its pods; the binder adds what it binds until the watch sees it.

    Attributes:
        on_freed: Called whenever a pod leaves the node.
    """

    def __init__(self) -> None:
        self.on_freed: Callable[[], None] = lambda: None
        self._bound: dict[str, Object] = {}
        self._assumed: dict[str, Object] = {}
        self._apart: dict[str, v1.Pod] = {}
        self._requests: dict[str, dict[str, Decimal]] = {}

    def __len__(self) -> int:
        return len(self._bound) + len(self._assumed)

    def update(self, uid: str, raw: Object | None) -> None:
        """Record the newest state of a pod of the node; None if it is gone."""
        assumed = self._assumed.pop(uid, None)
        if raw is not None and not status.is_terminal(raw):
            self._bound[uid] = raw
            self._note_apart(uid, raw)
        elif self._bound.pop(uid, assumed) is not None:
            self._free(uid)

    def assume(self, raw: Object) -> None:
        """Count a pod that is being bound."""
        uid = raw["metadata"]["uid"]
        if uid not in self._bound:
            self._assumed[uid] = raw
            self._note_apart(uid, raw)

    def forget(self, uid: str, *, is_told: bool = True) -> None:
        """Remove a pod that could not be bound; report the free place unless the pod keeps its turn."""
        if self._assumed.pop(uid, None) is not None:
            self._free(uid, is_told=is_told)

    def pods(self) -> Iterator[Object]:
        """Yield all occupants."""
        yield from self._bound.values()
        yield from self._assumed.values()

    def apart(self) -> Iterator[v1.Pod]:
        """Yield the pods with required anti-affinity."""
        yield from self._apart.values()

    def taken(self, name: str) -> Decimal:
        """Return how much of a resource the occupants have taken together."""
        return sum((self._request(raw, name) for raw in self.pods()), Decimal(0))

    def _request(self, raw: Object, name: str) -> Decimal:
        """Return how much of a resource a pod takes; cached, because a pod's resources do not change."""
        known = self._requests.setdefault(raw["metadata"]["uid"], {})
        if name not in known:
            known[name] = Decimal(0)
            if _names(raw["spec"], name):
                with contextlib.suppress(msgspec.ValidationError):  # its own worker reports it; others want to be bound
                    known[name] = resources.effective(v1.pod(raw), name)
        return known[name]

    def _free(self, uid: str, *, is_told: bool = True) -> None:
        self._apart.pop(uid, None)
        self._requests.pop(uid, None)
        if is_told:
            self.on_freed()

    def _note_apart(self, uid: str, raw: Object) -> None:
        if uid not in self._apart and (raw["spec"].get("affinity") or {}).get("podAntiAffinity"):
            with contextlib.suppress(msgspec.ValidationError):  # its own worker reports it; the watch must go on
                self._apart[uid] = v1.pod(raw)


def _names(spec: Object, resource: str) -> bool:
    """Return whether the pod names the resource, as a quick check: most do not."""
    parts = [c.get("resources") or {} for key in ("containers", "initContainers") for c in spec.get(key) or []]
    return resource in (spec.get("overhead") or {}) or any(
        resource in (part.get(key) or {}) for part in parts for key in ("requests", "limits")
    )
