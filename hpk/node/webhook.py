"""The interface through which the kubelet's API validates objects for admission."""

from __future__ import annotations

from typing import Any, Protocol

Object = dict[str, Any]


class AdmissionReviewer(Protocol):
    """A reviewer that decides from memory, since the API server and the object's creator wait for the answer."""

    def review(
        self, kind: str, raw: Object, *, old: Object | None = None, part: str = ""
    ) -> tuple[str | None, list[str]]:
        """Return why the object must be rejected (None: it is allowed), and warnings for its creator."""
