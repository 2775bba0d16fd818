"""The job's output, which is the agent's log: a file in the user's home, which may be full.

Python's own streams then raise, and a line about a fault becomes another fault: it would end the loop that prints why
it could not write the report.
"""

from __future__ import annotations

import _thread
import os


class JobOutput:
    """A text stream on a descriptor. What the file system refuses is lost, and no error is raised."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = _thread.allocate_lock()
        self._text = ""

    def write(self, text: str) -> int:
        """Take text; it is written with the end of its line."""
        with self._lock:
            self._text += text
        if text.endswith("\n"):
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Write the text taken so far."""
        with self._lock:
            text, self._text = self._text, ""
            left = memoryview(text.encode(self.encoding, self.errors))
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                pass
