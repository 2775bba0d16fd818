"""The kubelet's rules for restarts (kuberuntime_manager.go, doBackOff); pure."""

from __future__ import annotations

FIRST_SECONDS = 10.0
MOST_SECONDS = 300.0
RESET_SECONDS = 600.0


def should_restart(policy: str, *, exit_code: int, is_init: bool) -> bool:
    """Return whether a container that ended with this code runs again; an init that succeeded never does."""
    if policy == "Never":
        return False
    return exit_code != 0 or (policy == "Always" and not is_init)


class BackOff:
    """The pauses of one container: none before the first restart, then 10 s, doubled up to 300 s.

    They start anew after a run of more than ten minutes.
    """

    def __init__(self) -> None:
        self._pause = 0.0
        self._restarted_at = 0.0

    def pause_seconds(self, *, finished_at: float) -> float:
        """Return the pause after ``finished_at``; exit code 0 does not shorten it."""
        if self._pause and finished_at - self._restarted_at > RESET_SECONDS:
            self._pause = 0.0
        return self._pause

    def restarted(self, *, at: float) -> None:
        """Record a restart, which makes the next pause longer."""
        self._pause = min(self._pause * 2, MOST_SECONDS) if self._pause else FIRST_SECONDS
        self._restarted_at = at


def duration(seconds: float) -> str:
    """Return seconds as Go writes them in the kubelet's messages: ``10s``, ``1m20s``, ``5m0s``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
