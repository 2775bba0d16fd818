"""A pod's status compared with the API server's copy: what to write, and whether to; pure."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from hpk.pods import status

if TYPE_CHECKING:
    from collections.abc import Mapping


def merge_transitions(wanted: dict[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status to write; unchanged conditions keep their transition times."""
    old = {c["type"]: c for c in current.get("conditions") or []}
    conditions = []
    for condition in wanted["conditions"]:
        before = old.get(condition["type"])
        is_same = before is not None and before.get("status") == condition["status"]
        time = before.get("lastTransitionTime") if is_same and before else None
        conditions.append({**condition, "lastTransitionTime": time or condition["lastTransitionTime"]})
    return {**wanted, "conditions": conditions}


def is_reported(wanted: dict[str, Any], current: Mapping[str, Any]) -> bool:
    """Return whether the API server's copy already has all that is ours."""
    theirs = {**current, "conditions": [c for c in current.get("conditions") or [] if c["type"] in status.OURS]}
    by_type = operator.itemgetter("type")
    mine = {**wanted, "conditions": sorted(wanted["conditions"], key=by_type)}
    theirs["conditions"] = sorted(theirs["conditions"], key=by_type)
    return all(_normal(value) == _normal(theirs.get(key)) for key, value in mine.items())


def _normal(value: Any) -> Any:
    """Return the value without nulls and empty strings, lists and objects, which JSON omits."""
    if isinstance(value, dict):
        made = {key: _normal(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item not in (None, "", {}, [])} or None
    if isinstance(value, list):
        return [_normal(item) for item in value] or None
    return None if value == "" else value


def may_follow(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Return whether a status may replace another: a terminal phase is final, and nothing that has run un-starts.

    A terminal status may follow any other. One that goes back comes from a report that cannot be read just now.
    """
    phase = current.get("phase")
    if phase in status.TERMINAL:
        return bool(wanted["phase"] == phase)
    if wanted["phase"] in status.TERMINAL:
        return True
    if phase == "Running" and wanted["phase"] == "Pending":
        return False
    return not any(
        _goes_back(before, after)
        for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        for before in current.get(key) or []
        for after in wanted.get(key) or []
        if before["name"] == after["name"]
    )


def _goes_back(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a container's status takes back what one of its runs had reached."""
    counts = [one.get("restartCount") or 0 for one in (before, after)]
    if counts[0] != counts[1]:
        return counts[1] < counts[0]
    steps = [_step(one) for one in (before, after)]
    # A container stopped while it waits for a restart shows its last run again.
    return steps[1] < steps[0] and steps != [_BACK_OFF, _ENDED]


_NOT_BEGUN, _RUNNING, _ENDED, _BACK_OFF = range(4)


def _step(container: Mapping[str, Any]) -> int:
    state = container.get("state") or {}
    if "running" in state:
        return _RUNNING
    if "terminated" in state:
        return _ENDED
    return _BACK_OFF if (container.get("lastState") or {}).get("terminated") else _NOT_BEGUN
