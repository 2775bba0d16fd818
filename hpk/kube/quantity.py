"""Kubernetes' quantities (``500m``, ``1.5Gi``, ``2e3``) as exact numbers."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation

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


def parse(quantity: str | float) -> Decimal:
    """The number that a quantity means.

    Raises:
        ValueError: It is no quantity.
    """
    text = str(quantity).strip()
    number = text.rstrip("numkKMGTPEi")
    suffix = text[len(number) :]
    if suffix == "E" and not number:
        raise ValueError(f"'{quantity}' is not a quantity")
    try:
        return Decimal(number) * _SUFFIXES[suffix]
    except (InvalidOperation, KeyError) as error:
        raise ValueError(f"'{quantity}' is not a quantity") from error


def ceiling(value: Decimal) -> int:
    """The smallest whole number that is not less."""
    return int(value.to_integral_value(rounding=ROUND_CEILING))
