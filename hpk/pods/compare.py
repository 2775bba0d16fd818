"""A pod's status against what the API server has of it: what to write, and whether to write; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpk.pods import status

if TYPE_CHECKING:
    from collections.abc import Mapping


def merge_transitions(wanted: dict[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """The status to write: a condition whose value did not change keeps its transition time."""
    old = {c["type"]: c for c in current.get("conditions") or []}
    conditions = []
    for condition in wanted["conditions"]:
        before = old.get(condition["type"])
        is_same = before is not None and before.get("status") == condition["status"]
        time = before.get("lastTransitionTime") if is_same and before else None
        conditions.append({**condition, "lastTransitionTime": time or condition["lastTransitionTime"]})
    return {**wanted, "conditions": conditions}


def is_reported(wanted: dict[str, Any], current: Mapping[str, Any]) -> bool:
    """Whether the API server's copy says the same already, in all that is ours."""
    theirs = {**current, "conditions": [c for c in current.get("conditions") or [] if c["type"] in status.OURS]}
    mine = {**wanted, "conditions": sorted(wanted["conditions"], key=_type)}
    theirs["conditions"] = sorted(theirs["conditions"], key=_type)
    return all(_normal(value) == _normal(theirs.get(key)) for key, value in mine.items())


def _type(condition: Mapping[str, Any]) -> str:
    return str(condition["type"])


def _normal(value: Any) -> Any:
    """Without what JSON leaves out: empty strings, lists and objects, and nulls."""
    if isinstance(value, dict):
        made = {key: _normal(item) for key, item in value.items()}
        return {key: item for key, item in made.items() if item not in (None, "", {}, [])} or None
    if isinstance(value, list):
        return [_normal(item) for item in value] or None
    return None if value == "" else value


def may_follow(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether a status may replace another: a terminal phase is final, and what has run is not Pending again."""
    phase = current.get("phase")
    if phase == "Running" and wanted["phase"] == "Pending":
        return False  # nothing un-starts: the report that said so cannot be read just now
    return phase not in status.TERMINAL or wanted["phase"] == phase
