"""The query of ``/containerLogs``: ``v1.PodLogOptions`` as URL parameters, decoded and validated. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from hpk import errors
from hpk.node import cri

if TYPE_CHECKING:
    from collections.abc import Mapping

_SECOND_NS = 1_000_000_000
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)")
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
STREAMS = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}


class BadQuery(errors.Rejected):
    """A query that cannot be decoded (400) or is invalid (422)."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Query:
    """A decoded query; ``is_relative`` is set if its start is relative to now (``sinceSeconds``)."""

    follow: bool
    previous: bool
    is_relative: bool = False
    tail_entries: int | None
    options: cri.LogOptions

    def moved(self, seconds: float) -> Query:
        """Return the query for a log whose clock is `seconds` ahead of ours."""
        since = self.options.since_ns
        moved = None if since is None else since + int(seconds * _SECOND_NS)
        return replace(self, options=replace(self.options, since_ns=moved))


def decode(query: Mapping[str, str], *, now: float) -> Query:
    """Decode and validate the parameters; ignore unknown ones, as the kubelet does.

    Raises:
        BadQuery: The query is bad; `code` is the HTTP status.
    """
    tail = _tail(query)
    seconds = _number(query, "sinceSeconds")
    instant = _instant(query.get("sinceTime"))
    limit = _number(query, "limitBytes")
    stream = query.get("stream", "All")
    if stream not in STREAMS:
        raise _invalid(f"stream: Unsupported value: '{stream}' (known: {', '.join(STREAMS)})")
    if tail is not None and tail < 0:
        raise _invalid("tailLines: must be greater than or equal to 0")
    if limit is not None and limit < 1:
        raise _invalid("limitBytes: must be greater than 0")
    if seconds is not None and instant is not None:
        raise _invalid("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None and seconds < 1:
        raise _invalid("sinceSeconds: must be greater than 0")
    if tail is not None and stream != "All":
        raise _invalid("`tailLines` and specific `stream` are mutually exclusive for now")
    if seconds is not None:
        instant = int(now * _SECOND_NS) - seconds * _SECOND_NS
    return Query(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        is_relative=seconds is not None,
        tail_entries=tail,
        options=cri.LogOptions(
            timestamps=_flag(query, "timestamps"), since_ns=instant, limit_bytes=limit, stream=STREAMS[stream]
        ),
    )


def _tail(query: Mapping[str, str]) -> int | None:
    """Return ``tailLines``, or its older spelling ``tail``, where ``all`` means no limit."""
    older = query.get("tail")
    if older == "all":
        return None
    return _number(query, "tail") if older else _number(query, "tailLines")


def _flag(query: Mapping[str, str], name: str) -> bool:
    """Decode a boolean as apimachinery does: only absence, ``false`` and ``0`` are false."""
    return query.get(name, "false").lower() not in ("false", "0")


def _number(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not _WHOLE_NUMBER.fullmatch(text) or abs(int(text)) >= 1 << 63:
        raise _undecodable(f"{name}: '{text}' is not a whole number")
    return int(text)


def _instant(text: str | None) -> int | None:
    """Return an RFC 3339 time as Unix nanoseconds, or None if it is empty."""
    if not text:
        return None
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise _undecodable(f"sinceTime: '{text}' is not an RFC 3339 time")
    second, fraction, zone = match.groups()
    try:
        at = datetime.fromisoformat(second.upper() + zone.upper().replace("Z", "+00:00"))
    except ValueError as error:
        raise _undecodable(f"sinceTime: '{text}' is not an RFC 3339 time") from error
    return int(at.timestamp()) * _SECOND_NS + int((fraction or "").ljust(9, "0")[:9])


def _undecodable(detail: str) -> BadQuery:
    return BadQuery(f'{{"message": "Unable to decode query.", "details": "{detail}"}}', code=400)


def _invalid(detail: str) -> BadQuery:
    return BadQuery(f'{{"message": "Invalid request.", "details": "{detail}"}}', code=422)
