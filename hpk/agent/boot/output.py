"""The job's output, which is the agent's log: a file in the user's home, which may be full.

Python's own streams raise then, and what was to be a line about a fault becomes one: a loop that prints why it could
not write the report would end of it.
"""

from __future__ import annotations

import _thread
import os


class JobOutput:
    """A text stream on a descriptor.  What the file system does not take is lost; nobody who prints is told."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = _thread.allocate_lock()
        self._text = ""

    def write(self, text: str) -> int:
        """Take text; it goes out with the end of its line."""
        with self._lock:
            self._text += text
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write what was taken."""
        with self._lock:
            text, self._text = self._text, ""
            left = memoryview(text.encode(self.encoding, self.errors))
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                pass
