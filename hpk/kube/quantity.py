"""Kubernetes' quantities (``500m``, ``1.5Gi``, ``2e3``) as exact numbers."""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}

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
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if number and number % int(_SUFFIXES[suffix]) == 0:
            return f"{number // int(_SUFFIXES[suffix])}{suffix}"
    return str(number)


def ceiling(value: Decimal) -> int:
    """Return the smallest integer that is not less."""
    return int(value.to_integral_value(rounding=ROUND_CEILING))
