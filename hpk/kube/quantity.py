"""Kubernetes' quantities (``500m``, ``1.5Gi``, ``2e3``) as exact numbers."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_DECIMAL = {suffix: Decimal(10) ** (3 * power) for power, suffix in enumerate(("n", "u", "m", "", *"kMGTPE"), start=-3)}
_BINARY = {f"{suffix}i": 1 << 10 * power for power, suffix in enumerate("KMGTPE", start=1)}
_SUFFIXES: dict[str, Decimal] = {**_DECIMAL, **{suffix: Decimal(size) for suffix, size in _BINARY.items()}}

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))((?P<exponent>[eE][+-]?\d+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?", re.ASCII
)


def parse(quantity: str | float) -> Decimal:
    """Return the number that a quantity means.

    Raises:
        ValueError: It is not a quantity.
    """
    found = _QUANTITY.fullmatch(str(quantity))
    if found is None:
        raise ValueError(f"'{quantity}' is not a quantity")
    return Decimal(found["number"] + (found["exponent"] or "")) * _SUFFIXES[found["suffix"] or ""]


def text(value: Decimal) -> str:
    """Return a number of bytes as Kubernetes writes it, with the largest binary suffix that keeps it whole."""
    number = ceiling(value)
    for suffix, size in reversed(_BINARY.items()):
        if number and number % size == 0:
            return f"{number // size}{suffix}"
    return str(number)


def ceiling(value: Decimal) -> int:
    """Return the smallest integer that is not less."""
    return int(value.to_integral_value(rounding=ROUND_CEILING))
