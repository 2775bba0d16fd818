"""The outcome of a session, as sent to clients on the error channel.

Source: client-go's tools/remotecommand (v1 to v5), which reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from hpk.link import sessions


@dataclass(frozen=True)
class SessionStatus:
    """The outcome of a session.

    Attributes:
        text: The error; empty on success.
        exit_code: The program's exit code; None if there is none.
    """

    text: str = ""
    exit_code: int | None = None

    def as_json(self) -> bytes:
        """Return a ``v1.Status``, for protocols of version 4 and later."""
        return msgspec.json.encode(self._object())

    def as_text(self) -> bytes:
        """Return the text for older protocols; empty on success."""
        message: str = self._object().get("message", "")
        return message.encode()

    def _object(self) -> dict[str, Any]:
        if self.exit_code:
            return {
                "metadata": {},
                "status": "Failure",
                "message": f"command terminated with non-zero exit code: exit status {self.exit_code}",
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(self.exit_code)}]},
            }
        if self.text:
            return {
                "metadata": {},
                "status": "Failure",
                "message": f"Internal error occurred: {self.text}",
                "reason": "InternalError",
                "details": {"causes": [{"message": self.text}]},
                "code": 500,
            }
        return {"metadata": {}, "status": "Success"}


def of(ended: sessions.Ended, *, doing: str) -> SessionStatus:
    """Return the status of an ended session; ``doing`` names the action in an error."""
    if ended.exit_code is not None:
        return SessionStatus(exit_code=ended.exit_code)
    return failed(ended.error, doing=doing) if ended.error else SessionStatus()


def failed(error: str, *, doing: str) -> SessionStatus:
    """Return the status of a session that could not be opened, or broke."""
    return SessionStatus(f"error {doing}: {error}")
