"""How a session ended, as clients are told on the error channel.

Source: client-go's tools/remotecommand (v1 to v5), which reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from hpk.link import sessions


@dataclass(frozen=True)
class Status:
    """One outcome.

    Attributes:
        text: What went wrong; empty if nothing did.
        exit_code: Of the program, if it ran; None where there is none.
    """

    text: str = ""
    exit_code: int | None = None

    def as_json(self) -> bytes:
        """For protocols of version 4 and later: a ``v1.Status``."""
        return msgspec.json.encode(self._object())

    def as_text(self) -> bytes:
        """For older protocols: nothing means success."""
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


def of(ended: sessions.Ended, *, doing: str) -> Status:
    """The status that a session's end means; ``doing`` says what could not be done, if it could not."""
    if ended.exit_code is not None:
        return Status(exit_code=ended.exit_code)
    return failed(ended.error, doing=doing) if ended.error else Status()


def failed(error: str, *, doing: str) -> Status:
    """The status of a session that could not be had, or broke."""
    return Status(f"error {doing}: {error}")
