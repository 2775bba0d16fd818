"""Problems that the control plane cannot repair: logged when they come and go, and shown on the node meanwhile."""

from __future__ import annotations

import structlog

logger = structlog.get_logger(__name__)


class Troubles:
    """Problems by name, each a sentence for the user."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __str__(self) -> str:
        return "; ".join(text for _, text in sorted(self._found.items()))

    def tell(self, name: str, text: str) -> None:
        """Record a problem; an empty text clears it."""
        if text and name not in self._found:
            logger.warning("The control plane has a problem that it cannot repair", what=name, why=text)
        elif not text and name in self._found:
            logger.info("The problem is over", what=name)
        self._found.pop(name, None)
        if text:
            self._found[name] = text
