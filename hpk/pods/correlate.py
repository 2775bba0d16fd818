"""Which events to write, and which to merge; pure but for its clock.

Like client-go's correlator (tools/record/events_cache.go of Kubernetes 1.37): a repeated event raises a count; ten
texts with one reason for one pod within ten minutes become one event; a pod may have 25 events of a type at once, then
one per five minutes.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

Kind = Literal["Normal", "Warning"]
Key = tuple[str, ...]
Value = TypeVar("Value")

MOST_REMEMBERED = 4096
MOST_SIMILAR = 10
SIMILAR_SECONDS = 600.0
BURST = 25
REFILL_SECONDS = 300.0
COMBINED = "(combined from similar events): "
NAME_LENGTH = 230
"""How much of the pod's name an event's name keeps; both may have 253 characters."""


@dataclass(frozen=True, kw_only=True)
class PodEvent:
    """An event about a pod.

    Attributes:
        field_path: The part of the pod that it concerns, such as ``spec.containers{c}``; may be empty.
        at: When it happened, in Unix seconds.
        count: How often its source has seen it so far.
        number: The number of the agent's event; 0 for the kubelet's own.
        key: If not empty, only one event is ever written under this key, whatever its text.
    """

    namespace: str
    name: str
    uid: str
    kind: Kind
    reason: str
    message: str
    at: float
    field_path: str = ""
    count: int = 1
    number: int = 0
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class CorrelatedEvent:
    """An event as the API server should have it; ``is_new`` if it must be created."""

    event: PodEvent
    name: str
    count: int
    first_at: float
    is_new: bool


@dataclass(kw_only=True)
class _Similar:
    texts: set[str] = field(default_factory=set)
    last_at: float = float("-inf")


@dataclass(kw_only=True)
class _Seen:
    count: int
    first_at: float


class _Budget(NamedTuple):
    left: float
    at: float


class Correlator:
    """The correlator of events, which remembers the pods that had events last."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: _Newest[_Seen] = _Newest()
        self._similar: _Newest[_Similar] = _Newest()
        self._budgets: _Newest[_Budget] = _Newest()

    def correlate(self, event: PodEvent) -> CorrelatedEvent | None:
        """Return the event to write, or None to drop it."""
        if event.key:
            return self._once(event)
        event, key = self._aggregated(event)
        seen = self._seen.get(key)
        count = max(event.count, seen.count + 1 if seen else 1)
        first_at = seen.first_at if seen else event.at
        self._seen.put(key, _Seen(count=count, first_at=first_at))
        if not self._is_affordable((event.uid, event.kind)):
            return None
        return CorrelatedEvent(event=event, name=_name(event, key), count=count, first_at=first_at, is_new=seen is None)

    def _once(self, event: PodEvent) -> CorrelatedEvent | None:
        """Return the event unless it was written; a budget must not drop how a pod ended."""
        key: Key = ("once", event.uid, event.key)
        if self._seen.get(key) is not None:
            return None
        self._seen.put(key, _Seen(count=1, first_at=event.at))
        return CorrelatedEvent(event=event, name=_name(event, key), count=1, first_at=event.at, is_new=True)

    def remember(self, event: PodEvent, *, first_at: float) -> None:
        """Remember an event that an earlier kubelet wrote."""
        combined = event.message.startswith(COMBINED)
        key = _similar_key(event) if combined else _key(event)
        self._seen.put(key, _Seen(count=event.count, first_at=first_at))

    def _aggregated(self, event: PodEvent) -> tuple[PodEvent, Key]:
        """Return the event, or the one that combines similar events, and its key."""
        now, key = self._clock(), _similar_key(event)
        similar = self._similar.get(key)
        if similar is None or now - similar.last_at > SIMILAR_SECONDS:
            similar = _Similar()
        similar.texts.add(event.message)
        similar.last_at = now
        self._similar.put(key, similar)
        if len(similar.texts) < MOST_SIMILAR:
            return event, _key(event)
        similar.texts.pop()
        message = COMBINED + event.message
        return dataclasses.replace(event, message=message, count=1), key

    def _is_affordable(self, key: Key) -> bool:
        now = self._clock()
        budget = self._budgets.get(key) or _Budget(left=BURST, at=now)
        left = min(float(BURST), budget.left + (now - budget.at) / REFILL_SECONDS)
        is_affordable = left >= 1
        self._budgets.put(key, _Budget(left=left - is_affordable, at=now))
        return is_affordable


class _Newest(Generic[Value]):
    """A bounded mapping that keeps the most recently used items."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, Value] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        if key in self._items:
            self._items.move_to_end(key)
        return self._items.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        self._items[key] = value
        self._items.move_to_end(key)
        while len(self._items) > MOST_REMEMBERED:
            self._items.popitem(last=False)


def _key(event: PodEvent) -> Key:
    return (event.uid, event.field_path, event.kind, event.reason, event.message)


def _similar_key(event: PodEvent) -> Key:
    return ("similar", event.uid, event.kind, event.reason)


def _name(event: PodEvent, key: Key) -> str:
    """Return the name of the event's object: the same for the same key, even after a restart."""
    # Text that is not UTF-8 comes as surrogates, from a container's output, Slurm's messages or a registry's JSON.
    digest = hashlib.sha256("\0".join(key).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{event.name[:NAME_LENGTH]}.{digest}"
