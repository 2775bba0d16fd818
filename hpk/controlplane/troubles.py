"""What the control plane cannot mend by itself: told in the log when it comes and goes, and on the node meanwhile."""

from __future__ import annotations

import structlog

logger = structlog.get_logger(__name__)


class Troubles:
    """Troubles by name, each a sentence for the user."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def __str__(self) -> str:
        return "; ".join(text for _, text in sorted(self._found.items()))

    def tell(self, name: str, text: str) -> None:
        """Note a trouble; an empty text says that it is over."""
        if text and name not in self._found:
            logger.warning("There is trouble", what=name, why=text)
        elif not text and name in self._found:
            logger.info("The trouble is over", what=name)
        self._found.pop(name, None)
        if text:
            self._found[name] = text
