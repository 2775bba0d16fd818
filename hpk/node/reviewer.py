"""What the kubelet's API asks the pods room about objects that are about to be created: the seam between the two."""

from __future__ import annotations

from typing import Any, Protocol

Object = dict[str, Any]


class Reviewer(Protocol):
    """Decides from memory: the API server, and whoever creates the object, wait for the answer."""

    def review(
        self, kind: str, raw: Object, *, old: Object | None = None, part: str = ""
    ) -> tuple[str | None, list[str]]:
        """Return why the object must not be so (None: it may), and what its maker should know all the same."""
        ...
