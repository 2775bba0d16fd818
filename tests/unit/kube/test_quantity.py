"""Quantities are exact, and what is none is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpk.kube import quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1", "1"),
        (2, "2"),
        (0.25, "0.25"),
        ("500m", "0.5"),
        ("1.5Gi", str(3 << 29)),
        ("2e3", "2000"),
        ("2E3", "2000"),
        ("1E", str(10**18)),
        ("1Ei", str(1 << 60)),
        (".5", "0.5"),
        ("5.", "5"),
        ("-1", "-1"),
        ("100n", "1e-7"),
        ("7k", "7000"),
    ],
)
def test_a_quantity_is_the_number_that_the_api_server_reads(text: str | float, number: str) -> None:
    """Decimal and binary suffixes, exponents, signs and bare points (apimachinery's resource.ParseQuantity)."""
    assert quantity.parse(text) == Decimal(number)


@pytest.mark.parametrize("text", ["", "E", "e3", "1e", "1_0", "NaN", "Infinity", "1KiB", "1K", " 1", "1e3Ki", "٣"])
def test_what_is_no_quantity_is_refused_by_its_text(text: str) -> None:
    """Python's own numbers are more than Kubernetes' are."""
    with pytest.raises(ValueError, match="is not a quantity"):
        quantity.parse(text)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_whole_numbers_survive_exactly(number: int) -> None:
    """No quantity passes through a float."""
    assert quantity.ceiling(quantity.parse(str(number))) == number
    assert quantity.ceiling(quantity.parse(f"{number}m")) == -(-number // 1000)


@pytest.mark.parametrize(
    ("number", "text"),
    [("0", "0"), ("1023", "1023"), ("1024", "1Ki"), ("1536", "1536"), (str(3 << 29), "1536Mi"), (str(1 << 60), "1Ei")],
)
def test_bytes_are_written_as_kubernetes_writes_them(number: str, text: str) -> None:
    """With the largest suffix that leaves a whole number."""
    assert quantity.text(Decimal(number)) == text
