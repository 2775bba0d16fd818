"""The shape of a measurement."""

from __future__ import annotations

import statistics
from typing import Any


def result(
    name: str,
    values: list[float],
    *,
    unit: str = "s",
    baseline: list[float] | None = None,
    details: dict[str, float] | None = None,
) -> dict[str, Any]:
    """An entry of the list."""
    value = statistics.median(values)
    base = statistics.median(baseline) if baseline else None
    ninth = statistics.quantiles(values, n=10)[-1] if len(values) > 1 else value
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "baseline": base,
        "ratio": value / base if base else None,
        "n": len(values),
        "details": {"p90": ninth, **(details or {})},
    }
