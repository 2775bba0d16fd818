"""The query of /containerLogs."""

from __future__ import annotations

import pytest

from hpk.node import cri, logquery

NOW = 1_700_000_000.5


def decode(**query: str) -> logquery.Query:
    """Decode at a fixed time."""
    return logquery.decode(query, now=NOW)


def test_nothing_asked_means_everything() -> None:
    """Without parameters the whole log comes once."""
    assert decode(unknown="x") == logquery.Query(
        follow=False, previous=False, tail_entries=None, options=cri.LogOptions()
    )


def test_all_parameters_are_decoded() -> None:
    """Each parameter reaches its option."""
    query = decode(follow="true", previous="1", timestamps="", sinceSeconds="10", tailLines="5", limitBytes="9")
    assert query.follow
    assert query.previous
    assert query.tail_entries == 5
    assert query.options == cri.LogOptions(timestamps=True, since_ns=1_699_999_990_500_000_000, limit_bytes=9)
    assert decode(stream="Stderr").options.stream == "stderr"
    assert decode(stream="All").options.stream is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("2023-11-15T00:13:20.25+02:00", 1_700_000_000_250_000_000),
        ("", None),
    ],
)
def test_since_time(text: str, expected: int | None) -> None:
    """RFC 3339 in any zone, to the nanosecond; empty is none."""
    assert decode(sinceTime=text).options.since_ns == expected


@pytest.mark.parametrize("text", ["false", "False", "0"])
def test_false_is_false(text: str) -> None:
    """As apimachinery decodes booleans."""
    assert not decode(follow=text).follow


def test_older_tail_parameter() -> None:
    """The parameter tail still means tailLines, and its value all means no limit."""
    assert decode(tail="3").tail_entries == 3
    assert decode(tail="all", tailLines="3").tail_entries is None


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "many"},
        {"tailLines": ""},
        {"limitBytes": "1.5"},
        {"limitBytes": str(1 << 63)},
        {"sinceTime": "yesterday"},
        {"sinceTime": "2023-13-99T00:00:00Z"},
    ],
)
def test_undecodable_is_400(query: dict[str, str]) -> None:
    """What is no number or no time names its parameter."""
    with pytest.raises(logquery.BadQuery, match=next(iter(query))) as caught:
        logquery.decode(query, now=NOW)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    "query",
    [
        {"tailLines": "-1"},
        {"limitBytes": "0"},
        {"sinceSeconds": "0"},
        {"stream": "stdout"},
        {"sinceSeconds": "1", "sinceTime": "2023-11-14T22:13:20Z"},
        {"stream": "Stdout", "tailLines": "1"},
    ],
)
def test_invalid_is_422(query: dict[str, str]) -> None:
    """What does not go together is refused as the API server refuses it."""
    with pytest.raises(logquery.BadQuery) as caught:
        logquery.decode(query, now=NOW)
    assert caught.value.code == 422
